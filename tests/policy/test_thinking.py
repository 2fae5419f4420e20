"""model.thinking decides for every chat of every pipeline whether the reply may begin with thoughts."""

import ast
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_policy import load_tiny
from transformers import PreTrainedTokenizerBase

import rlnb
from rlnb.code_execution.evaluation import ProgramEvaluation
from rlnb.code_execution.families import builtin_tasks
from rlnb.code_execution.prompts import prompt_dataset
from rlnb.code_game.evaluation import GameEvaluation
from rlnb.code_game.opponents import ModelOpponent
from rlnb.code_game.reward import GameReferee
from rlnb.code_game.training import build_game_dataset
from rlnb.game_2048.evaluation import StrategyEvaluation
from rlnb.game_2048.training import make_strategy_dataset
from rlnb.games.text_games import load_game
from rlnb.grpo.training import grpo_config
from rlnb.mbpp.evaluation import MbppEvaluation
from rlnb.params import load_params
from rlnb.policy import Policy, model_directory
from rlnb.ppo.setup import load_playable_curriculum
from rlnb.sandbox import Limits, Reruns, Sandbox
from rlnb.selfplay.arena import make_arena
from rlnb.selfplay.rollouts import GameRules

# As Qwen3's: where nothing is said, the model thinks.
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
SKIPPED = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def params_of(notebook: str, policy: Policy, tmp_path: Path, **overrides: dict[str, object]):
    """Return the parameters of the profile tiny with a policy's model.thinking."""
    overrides = {"model": {"id": policy.source, "thinking": policy.thinking}, **overrides}
    params = load_params(notebook, profile="tiny", overrides=overrides, environ={})
    return params.model_copy(update={"output_dir": str(tmp_path)})


def config_of(params, tmp_path: Path):
    return grpo_config(params.training, output_dir=tmp_path, seed=1, dtype="float32", use_gpu=False)


def ask_code_execution(policy: Policy, tmp_path: Path) -> None:
    params = params_of(
        "grpo_code_execution", policy, tmp_path, tasks={"prompt": "prefilled"},
        evaluation={"num_questions": 1, "temperature": 0.0},
    )  # fmt: skip
    tasks, wording = builtin_tasks()[:1], {"printed_example": True}
    prompt_dataset(tasks, policy, config_of(params, tmp_path), form="chat", **wording)
    with Sandbox(num_workers=1) as sandbox:
        ProgramEvaluation(params, {"known": tasks}, sandbox)(policy)


def ask_code_game(policy: Policy, tmp_path: Path) -> None:
    params = params_of("grpo_code_game", policy, tmp_path, evaluation={"num_prompts": 1})
    build_game_dataset(params, policy, config_of(params, tmp_path))
    with Reruns(Limits(cpu_seconds=1), num_interpreters=2, num_workers=1) as reruns:
        GameEvaluation(params, GameReferee(reruns, len), ModelOpponent(policy, shots=()), None)(policy)


def ask_2048(policy: Policy, tmp_path: Path) -> None:
    params = params_of("gpt_oss_2048", policy, tmp_path, prompt={"reasoning_effort": "low"})
    make_strategy_dataset(params, policy, config_of(params, tmp_path))
    with Sandbox(num_workers=1) as sandbox:
        StrategyEvaluation.from_params(params, sandbox)(policy)


def ask_mbpp(policy: Policy, tmp_path: Path) -> None:
    params = params_of("mbpp_eval", policy, tmp_path, mbpp={"template": "chat"})
    assert params.mbpp.template == "chat"
    with Sandbox(num_workers=1) as sandbox:
        evaluation = MbppEvaluation.from_params(params, sandbox)
        evaluation(evaluation.writer(policy))


def ask_self_play(policy: Policy, tmp_path: Path) -> None:
    params = params_of("spiral_self_play", policy, tmp_path, game={"style": "full"})
    arena = make_arena(
        policy, GameRules(), [], acting=params.game.model_copy(update={"max_prompt_tokens": 9999}),
        training=params.training, seed=1, has_value=False,
    )  # fmt: skip
    game = load_game("nim")
    arena.encoder.prompt_ids([game.prompt(game.new_state())])


def ask_ppo(policy: Policy, tmp_path: Path) -> None:
    load_playable_curriculum(
        params_of("ppo_openspiel", policy, tmp_path, game={"style": "full", "max_prompt_tokens": 9999})
    )


ASK: dict[str, Callable[[Policy, Path], None]] = {
    "code execution": ask_code_execution, "code game": ask_code_game, "2048": ask_2048,
    "MBPP": ask_mbpp, "self-play": ask_self_play, "PPO": ask_ppo,
}  # fmt: skip


@pytest.fixture(scope="module")
def thinker(cache_dir, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a thinking mode."""
    directory = tmp_path_factory.mktemp("thinker") / "model"
    shutil.copytree(model_directory("tiny", cache_dir), directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return directory


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("pipeline", ASK)
def test_all_prompts_of_a_pipeline_follow_model_thinking(pipeline, thinking, thinker, tmp_path, monkeypatch):
    policy = load_tiny(tmp_path, id=str(thinker), **({"thinking": True} if thinking else {}))
    texts: list[str] = []
    render = PreTrainedTokenizerBase.apply_chat_template

    def note(*arguments: object, **options: object) -> str:
        texts.append(render(*arguments, **options))
        return texts[-1]

    monkeypatch.setattr(PreTrainedTokenizerBase, "apply_chat_template", note)
    ASK[pipeline](policy, tmp_path)
    if pipeline == "self-play":  # the last ones are those of the comparison, which tries both
        texts = texts[:3]
    assert texts and {text.endswith(SKIPPED) for text in texts} == {not thinking}


def test_chats_are_rendered_in_one_place():
    package = Path(rlnb.__file__).parent
    callers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "apply_chat_template"
    }
    assert callers == {"policy/prompts.py"}
