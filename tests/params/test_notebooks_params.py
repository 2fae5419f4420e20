"""The parameters of each notebook: published settings are defaults, and contradictions are refused."""

from operator import attrgetter
from pathlib import Path

import pytest
from refusals import refused, with_set

from rlnb.advantages.role import ROLE_DECAY
from rlnb.params import load_params
from rlnb.params.loading import MODELS, list_fields, load_model_class
from rlnb.params.reading import read_yaml

GRPO = {
    "training.learning_rate": 2e-5, "training.max_steps": 90, "training.per_device_train_batch_size": 8,
    "training.num_generations": 2, "evaluation.enabled": True, "evaluation.num_questions": 5,
    "evaluation.num_samples": 1, "evaluation.eval_interval_steps": 20, "evaluation.temperature": 0.2,
    "evaluation.timeout_seconds": 10.0, "vllm.enabled": False, "vllm.gpu_memory_utilization": 0.4,
    "vllm.max_model_len": 2048,
}  # fmt: skip
PUBLISHED = {
    "grpo_code_execution": GRPO,
    "grpo_code_game": GRPO | {"reward.preset": "required", "opponent.kind": "base", "model.id": "auto"},
    "mbpp_eval": {"evaluation.temperature": 0.2, "evaluation.timeout_seconds": 10.0},
    "gpt_oss_2048": {
        "model.id": "unsloth/gpt-oss-20b", "model.load_in_4bit": True, "model.offload_embedding": True,
        "model.lora_rank": 4, "model.lora_alpha": 8, "model.max_seq_length": 768,
        "training.learning_rate": 5e-5, "training.warmup_steps": 100, "training.optim": "adamw_8bit",
        "training.max_steps": 1000, "training.save_steps": 100, "training.max_completion_length": 200,
        "training.num_generations": 2, "training.gradient_accumulation_steps": 4,
        "board.kinds": ("6x6/2048",), "board.play_on": False, "reward.preset": "requirements",
        "reward.num_boards": 1, "prompt.preset": "board", "sandbox.timeout_seconds": 5.0,
    },
    "spiral_self_play": {
        "advantage.kind": "rae", "training.max_steps": 400, "training.num_epochs": 2, "training.clip": 0.2,
        "model.id": "auto", "game.name": "tic_tac_toe", "game.acting": "free", "game.invalid": "forfeit",
    },
    "ppo_openspiel": {  # config/train_config.json in the document
        "model.id": "Qwen/Qwen3-4B", "model.load_in_4bit": True, "training.games_per_step": 16,
        "training.learning_rate": 5e-6, "training.max_steps": 5000, "game.max_prompt_tokens": 1024,
        "game.max_new_tokens": 8,
    },
}  # fmt: skip
SERVED = "opponent.base_url=http://h:8000/v1 opponent.model_id=m"
# {notebook: {assignments: the field that is named}}
CONTRADICTIONS = {
    "grpo_code_execution": {
        "tasks.source=no.jsonl": "tasks.source",
        "mbpp.path=data": "mbpp.path",
        "vllm.enabled=true vllm.max_model_len=512": "vllm.max_model_len",
    },
    "grpo_code_game": {
        "opponent.base_url=http://h:8000/v1": "opponent.model_id",
        "opponent.model_id=me/mine": "opponent.model_id",
        f"{SERVED} reward.preset=graded": "reward.preset",
        f"{SERVED} opponent.refresh_steps=5": "opponent.refresh_steps",
        "opponent.refresh_steps=91": "opponent.refresh_steps",
        "evaluation.enabled=false evaluation.control=true": "evaluation.control",
    },
    "mbpp_eval": {
        "writer.base_url=http://h/v1": "writer.served_model",
        "writer.samples_path=no": "writer.samples_path",
        "evaluation.temperature=0 evaluation.num_samples=5": "evaluation.num_samples",
    },
    "gpt_oss_2048": {
        "training.max_completion_length=768": "training.max_completion_length",
        "save.formats=[gguf]": "save.formats[0]",
        "board.kinds=[4x5/2048]": "board.kinds",
    },
    "spiral_self_play": {
        "advantage.kind=gae_plies": "advantage.kind",
        "model.lora_rank=0 model.load_in_4bit=true": "model.lora_rank",
        "model.lora_rank=0 model.dtype=float16": "model.dtype",
        "training.learning_rate=1e-5 training.final_learning_rate=1e-4": "training.final_learning_rate",
        "training.resume=/none/checkpoint-3": "training.resume",
    },
}


@pytest.mark.parametrize("notebook", PUBLISHED)
def test_the_default_file_holds_the_published_settings(notebook):
    params = load_params(notebook, profile="default", environ={})
    fields = PUBLISHED[notebook]
    assert {field: attrgetter(field)(params) for field in fields} == fields
    if notebook in ("grpo_code_execution", "grpo_code_game", "spiral_self_play"):
        assert params == type(params)()  # the models' own defaults
    assert ROLE_DECAY == 0.95  # of SPIRAL
    stages = load_params("ppo_openspiel", profile="requirements", environ={}).curriculum.stages
    assert [(stage.threshold, stage.final_score) for stage in stages] == [(0.6, 0.5), (0.5, 0.4), (0.4, 0.3)]


@pytest.mark.parametrize(
    ("notebook", "given"), [(notebook, given) for notebook, rows in CONTRADICTIONS.items() for given in rows]
)
def test_what_does_not_go_together_or_is_not_there_is_refused_by_its_field(notebook, given):
    said = refused(with_set, *given.split(), notebook=notebook).splitlines()[-1]
    assert said.startswith(f"--set: {CONTRADICTIONS[notebook][given]} = ")


def test_each_parameter_is_in_a_profile_or_on_a_page_and_there_are_at_most_120():
    root = Path(__file__).parents[2]
    fields = {field for notebook in MODELS for field in list_fields(load_model_class(notebook))}
    profiles = [path for notebook in MODELS for path in root.glob(f"params/{notebook}/*.yaml")]
    given = {entry.field for path in profiles for entry in read_yaml(path, path.name)[0]}
    pages = [path.read_text() for path in [*root.glob("docs/*.md"), *root.glob("notebooks/*.ipynb")]]
    assert [field for field in fields - given if not any(field in page for page in pages)] == []
    assert len(fields) <= 120
