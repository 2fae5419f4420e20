"""How fast a GRPO step of the embedded model, or another, is on a CPU, beside a bare step of TRL's.

32 completions of 64 tokens each, 4 prompts of the profile cpu, no ties; all contestants take turns.

- `vs_trl`: seconds of a step of GRPOTrainer over those of CpuGRPOTrainer; `.._8x4`: over GRPOTrainer with
  passes of 8 completions, as its memory may require.
- `generation_vs_transformers`: seconds of `generate` over those of `decode`, 32 rows sampled.
- `contention`: our step beside one busy process over a quiet one.
- `step_over_products`: our step over the matrix products alone that it cannot do without.
- `seconds`: of each; "decode" is the writing, "ours" less that the update.

    GOMP_SPINCOUNT=5000 python benchmarks/grpo_step.py --json    # as a run has it: matters for contention
    RLNB_MODEL__ID=DIR python benchmarks/grpo_step.py --json    # another model, such as Qwen2.5-Coder-0.5B
"""

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import datasets
import torch
from timing import interleave, report
from trl import GRPOTrainer

from rlnb.code_execution.prompts import build_prompt
from rlnb.code_execution.sources import load_tasks
from rlnb.grpo.config import GRPOConfig, settings_of_machine
from rlnb.grpo.cpu_trainer import CpuGRPOTrainer
from rlnb.machine import probe, recommend
from rlnb.params import load_params, resolve
from rlnb.params.sections import NotebookParams
from rlnb.policy import Policy, load_policy
from rlnb.policy.cpu_attention import NAME
from rlnb.policy.decoding import decode
from rlnb.policy.generation import evaluating

ROUNDS, ROWS, GROUP, TOKENS = 3, 32, 8, 64
BUSY = "while True: pass"


def timed(run: Callable[[], object]) -> list[float]:
    started = time.perf_counter()
    run()
    return [time.perf_counter() - started]


def make_step(
    kind: type[GRPOTrainer], policy: Policy, params: NotebookParams, prompts: list[str], *,
    attention: str, batch: int,
) -> Callable[[], list[float]]:  # fmt: skip
    """Return a function that does one step of a trainer, but for the optimizer's."""
    config = GRPOConfig(
        learning_rate=params.training.learning_rate,
        max_steps=params.training.max_steps,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=ROWS // batch,
        num_generations=GROUP,
        max_completion_length=TOKENS,
        temperature=0.7,
        seed=1,
        **settings_of_machine(params, policy),
    )
    numbers = random.Random(0)
    trainer = kind(
        policy.model,
        lambda completions, **_: [numbers.random() for _ in completions],
        args=config,
        train_dataset=datasets.Dataset.from_list([{"prompt": prompt} for prompt in prompts * 8]),
        processing_class=policy.tokenizer,
    )
    if isinstance(trainer, CpuGRPOTrainer) and not trainer.is_lean:
        raise RuntimeError("CpuGRPOTrainer leaves these settings to TRL: there is nothing to compare")
    trainer.generation_config.eos_token_id = None  # all completions have the same length
    trainer.eos_token_ids = [-1]
    trainer.current_gradient_accumulation_steps = ROWS // batch
    inputs = next(iter(trainer.get_train_dataloader()))

    def step() -> list[float]:
        policy.model.get_base_model().set_attn_implementation(attention)
        policy.model.train()
        trainer._step, trainer._buffered_inputs = 0, None

        def passes() -> None:
            for _ in range(ROWS // batch):
                trainer.training_step(trainer.model, inputs, ROWS)
            policy.model.zero_grad()

        return timed(passes)

    return step


def products(policy: Policy, prompt_tokens: int) -> Callable[[], list[float]]:
    """Return a function that does a step's matrix products alone: writing, and a pass forth and back."""
    layers = [layer for layer in policy.model.modules() if type(layer) is torch.nn.Linear]
    weights = [layer.weight.detach() for layer in layers if layer.weight.dtype == torch.bfloat16]

    def multiply(rows: int, times: int) -> None:
        inputs = {size: torch.randn(rows, size).bfloat16() for size in {w.shape[1] for w in weights}}
        for _ in range(times):
            for weight in weights:
                inputs[weight.shape[1]] @ weight.t()

    def run() -> None:
        multiply(ROWS, TOKENS)
        multiply(prompt_tokens, 2)  # written and trained on, back only to the adapters
        multiply(ROWS * TOKENS, 2)

    return lambda: timed(run)


def main() -> None:
    folder = {"output_dir": tempfile.mkdtemp()}
    params = load_params("grpo_code_execution", profile="cpu", overrides=folder)
    params = resolve(params, recommend(probe(ask_hub=False)))
    policy = load_policy(params.model, seed=1)
    tasks = load_tasks("builtin", seed=1)["train"][: ROWS // GROUP]
    prompts = [build_prompt(task, params.tasks.prompt, policy.chat).text for task in tasks]
    ids = [tokens for tokens in policy.tokenizer(prompts)["input_ids"] for _ in range(GROUP)]
    padded = policy.tokenizer(prompts, return_tensors="pt", padding=True)
    padded = {name: value.repeat_interleave(GROUP, 0) for name, value in padded.items()}

    def generate() -> None:
        policy.model.get_base_model().set_attn_implementation("sdpa")
        with evaluating(policy):
            policy.model.generate(
                **padded, do_sample=True, temperature=0.7, top_k=0, top_p=1.0, max_new_tokens=TOKENS,
                min_new_tokens=TOKENS, repetition_penalty=1.0,
            )  # fmt: skip

    def write() -> None:
        policy.model.get_base_model().set_attn_implementation(NAME)
        with evaluating(policy):
            decode(policy.model, ids, max_new_tokens=TOKENS, temperature=0.7, ends=[], pad=0)

    made = partial(make_step, policy=policy, params=params, prompts=prompts)
    ours = made(CpuGRPOTrainer, attention=NAME, batch=ROWS)
    contestants = {
        "trl": made(GRPOTrainer, attention="sdpa", batch=ROWS),
        "trl_8x4": made(GRPOTrainer, attention="sdpa", batch=ROWS // 4),
        "ours": ours,
        "generate": lambda: timed(generate),
        "decode": lambda: timed(write),
        "products": products(policy, padded["input_ids"][::GROUP].numel()),
    }
    seconds = {name: row["p50_ms"] / 1000 for name, row in interleave(contestants, rounds=ROUNDS).items()}
    with subprocess.Popen([sys.executable, "-c", BUSY]) as busy:
        time.sleep(1)
        beside = min(ours()[0] for _ in range(ROUNDS))
        busy.kill()
    figures = {
        "vs_trl": seconds["trl"] / seconds["ours"],
        "vs_trl_8x4": seconds["trl_8x4"] / seconds["ours"],
        "generation_vs_transformers": seconds["generate"] / seconds["decode"],
        "contention": beside / seconds["ours"],
        "step_over_products": seconds["ours"] / seconds["products"],
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
    }
    report(figures, description=str(Path(__file__).name))


if __name__ == "__main__":
    main()
