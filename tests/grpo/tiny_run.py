"""A GRPO run of the tiny model in its own process: what the tests of resuming start, stop and start again.

The tasks are few, so that the prompts' order crosses epoch boundaries; the reward is the share of lower-case
letters, which random weights can earn and learn.
"""

import argparse
import json
from pathlib import Path

from rlnb.code_execution.families import builtin_tasks
from rlnb.code_execution.params import GrpoCodeExecutionParams
from rlnb.code_execution.prompts import prompt_dataset
from rlnb.grpo import kl
from rlnb.grpo import training as grpo
from rlnb.machine.threads import set_threads
from rlnb.params.sections import ModelParams
from rlnb.params.training import TrainingParams
from rlnb.policy import generate, load_policy, save_adapters
from rlnb.run import stop_signal
from rlnb.run.checkpoints import checkpoint_step, checkpoint_to_resume
from rlnb.run.tracking import open_tracker


def lower_case(*, completions: list[str], **_: object) -> list[float]:
    return [sum(letter.islower() for letter in text) / max(1, len(text)) for text in completions]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--max-steps", type=int, default=6)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--beta", type=float, default=0.0)
    parser.add_argument("--without-optimizer", action="store_true", help="keep its state out of checkpoints")
    parser.add_argument("--kl-interval", type=int, default=10, help="steps between measurements of the KL")
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--save-steps", type=int, default=2)
    parser.add_argument("--save-minutes", type=float, default=stop_signal.SAVE_MINUTES)
    parser.add_argument("--adapters", default="", help="begin with these")
    parser.add_argument("--announce", action="store_true", help="print a line a step")
    arguments = parser.parse_args()
    set_threads(1)
    kl.INTERVAL_STEPS = arguments.kl_interval
    model = tiny_model(arguments.output_dir.parent).model_copy(update={"adapters": arguments.adapters})
    policy = load_policy(model)
    training = TrainingParams(
        learning_rate=arguments.learning_rate, max_steps=arguments.max_steps,
        per_device_train_batch_size=arguments.batch_size, num_generations=4,
        gradient_accumulation_steps=2, max_completion_length=12, save_steps=arguments.save_steps,
        gradient_checkpointing=False, beta=arguments.beta,
        save_optimizer=not arguments.without_optimizer,
    )  # fmt: skip
    stop_signal.SAVE_MINUTES = arguments.save_minutes
    config = grpo.grpo_config(
        training, output_dir=arguments.output_dir, seed=1, dtype="float32", use_gpu=False
    )
    prompts = prompt_dataset(builtin_tasks()[:3], policy, config, form="chat", printed_example=False)
    trainer = grpo.make_trainer(policy, config, rewards=[lower_case], prompts=prompts)
    params = GrpoCodeExecutionParams(model=model, training=training)
    checkpoint = checkpoint_to_resume(params, arguments.output_dir)
    step = checkpoint_step(checkpoint)
    tracker = open_tracker(arguments.output_dir, config={}, resume_step=step, tensorboard=False)
    show = (lambda step, _: print("step", step, flush=True)) if arguments.announce else None
    texts = [row["prompt"] for row in list(prompts)[:2]]

    def evaluate(_: int) -> dict[str, float]:
        answers = generate(policy, texts, max_new_tokens=5, temperature=1.0, seed=3)
        return {"heldout/known/reward": sum(lower_case(completions=answers)) / len(answers)}

    interval = 2 if arguments.evaluate else 0
    reporter = grpo.MetricsReporter(tracker, trainer, show=show)
    evaluation = grpo.IntervalEvaluation(evaluate, interval=interval, reporter=reporter)
    grpo.train(trainer, params, reporter, checkpoint=checkpoint, callbacks=[evaluation])
    print(reporter.describe_overhead(0.0))
    save_adapters(policy, arguments.output_dir / "adapters")
    history = [row for row in trainer.state.log_history if "loss" in row]
    (arguments.output_dir / "history.json").write_text(json.dumps(history))


def tiny_model(cache_dir: Path) -> ModelParams:
    return ModelParams(
        id="tiny", cache_dir=str(cache_dir / "cache"), engine="transformers", dtype="float32",
        attention="sdpa", load_in_4bit=False, lora_rank=4,
    )  # fmt: skip


if __name__ == "__main__":
    main()
