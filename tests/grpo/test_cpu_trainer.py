"""The short step of CPUs against TRL's own: the same log-probabilities, gradients and loss."""

import copy
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import datasets
import pytest
import torch
from tiny_policy import load_tiny, train_by_hand
from trl import GRPOConfig, GRPOTrainer

from rlnb.grpo import cpu_trainer, kl
from rlnb.grpo import training as grpo
from rlnb.grpo.answer_trainer import AnswerTrainer
from rlnb.grpo.cpu_trainer import LENGTH_RATIO, CpuGRPOTrainer, completion_logprobs, drop_tied_rows
from rlnb.policy import Policy
from rlnb.policy.adapters import adapters_in_weights_dtype, hash_trained
from rlnb.policy.cpu_attention import use_cpu_attention
from rlnb.source_code.extraction import is_complete_answer


@pytest.fixture
def policy(cache_dir: Path) -> Policy:
    policy = load_tiny(cache_dir)
    train_by_hand(policy, std=0.1)
    return policy


def make_trainer(
    kind: type[GRPOTrainer], policy: Policy, directory: Path, *, prefix: str | None = None, **options: object
) -> GRPOTrainer:
    """prefix: an opened answer at the end of the prompts, which ends with its function f."""
    config = GRPOConfig(
        output_dir=str(directory), num_generations=4, max_completion_length=12, learning_rate=1e-3,
        logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, bf16=False,
        gradient_checkpointing=False, seed=5, disable_tqdm=True,
        **{"per_device_train_batch_size": 8, "max_steps": 2} | options,
    )  # fmt: skip
    columns = {} if prefix is None else {"prefix": prefix, "function": "f"}
    rows = datasets.Dataset.from_list(
        [{"prompt": "print(" + "x" * count + (prefix or ""), **columns} for count in range(1, 9)]
    )

    def reward(completions: list[str], **_: object) -> list[float]:
        return [float(sum(map(ord, text)) % 7) for text in completions]

    trainer = kind(policy.model, reward, args=config, train_dataset=rows, processing_class=policy.tokenizer)
    trainer.create_optimizer_and_scheduler(num_training_steps=2)
    return trainer


def gradient(policy: Policy) -> torch.Tensor:
    parts = [parameter.grad.flatten() for parameter in policy.model.parameters() if parameter.requires_grad]
    policy.model.zero_grad()
    return torch.cat(parts)


def ragged(count: int, longest: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [torch.randint(5, 200, (length,), generator=generator).tolist() for length in lengths]


def batch_of(policy: Policy, advantages: list[float]) -> dict[str, torch.Tensor]:
    """Return what TRL hands to its loss: prompts padded on the left, completions on the right."""
    prompts = [prompt for prompt in ragged(2, 20, 1) for _ in range(4)]
    completions = ragged(8, 12, 2)
    pad = policy.tokenizer.pad_token_id
    width, longest = max(map(len, prompts)), max(map(len, completions))
    return {
        "prompt_ids": torch.tensor([[pad] * (width - len(row)) + row for row in prompts]),
        "prompt_mask": torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts]),
        "completion_ids": torch.tensor([row + [pad] * (longest - len(row)) for row in completions]),
        "completion_mask": torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in completions]),
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": torch.tensor(sum(map(len, completions))),
    }


ADVANTAGES = [1.2, -0.3, 0.5, -1.4, 0.0, 0.0, 0.0, 0.0]  # the second group is tied


@pytest.mark.parametrize(
    "options",
    [
        {"loss_type": "dapo", "top_entropy_quantile": 0.3},  # of all rows, tied ones too
        {"loss_type": "grpo"},
        {"temperature": 0.7, "entropy_coef": 0.5},
    ],
    ids=str,
)
def test_the_gradient_is_that_of_trl(policy, tmp_path, monkeypatch, options):
    """In float32; 1e-5 is asked, 1e-6 measured. The head is read in several parts, and these too."""
    monkeypatch.setattr(cpu_trainer, "HEAD_ROWS", 8)
    monkeypatch.setattr(cpu_trainer, "CACHED_ROWS", 3)
    gradients, losses = [], []
    for kind in (GRPOTrainer, CpuGRPOTrainer):
        trainer = make_trainer(kind, policy, tmp_path, **options)
        trainer.current_gradient_accumulation_steps = 1
        trainer.model.train()
        loss = trainer._compute_loss(trainer.model, batch_of(policy, ADVANTAGES))
        loss.backward()
        gradients.append(gradient(policy))
        losses.append(loss.item())
    assert isinstance(trainer, CpuGRPOTrainer) and trainer.is_lean
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
    assert (gradients[1] - gradients[0]).norm() < 1e-5 * gradients[0].norm()


def test_log_probabilities_entropies_and_the_reference_are_those_of_trl(policy, tmp_path):
    batch = batch_of(policy, ADVANTAGES)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    kept = batch["completion_mask"].bool()
    trainers = [make_trainer(kind, policy, tmp_path) for kind in (GRPOTrainer, CpuGRPOTrainer)]
    for adapters in (nullcontext, policy.model.disable_adapter):
        with torch.no_grad(), adapters():
            (logps, entropies, _), (ours, our_entropies, _) = (
                trainer._get_per_token_logps_and_entropies(
                    trainer.model, ids, mask, kept.shape[1], compute_entropy=True
                )
                for trainer in trainers
            )
        assert (ours - logps)[kept].abs().max() < 1e-5
        assert (our_entropies - entropies)[kept].abs().max() < 1e-5


def test_bfloat16_gradients_point_the_same_way(cache_dir, tmp_path):
    policy = load_tiny(cache_dir, dtype="bfloat16")
    train_by_hand(policy, std=0.1)
    gradients = []
    for kind in (GRPOTrainer, CpuGRPOTrainer):
        if kind is CpuGRPOTrainer:
            use_cpu_attention(policy.model)
        trainer = make_trainer(kind, policy, tmp_path)
        trainer.current_gradient_accumulation_steps = 1
        trainer.model.train()
        trainer._compute_loss(trainer.model, batch_of(policy, ADVANTAGES)).backward()
        gradients.append(gradient(policy).float())
    assert torch.cosine_similarity(*gradients, dim=0) > 0.99


def test_tied_rows_are_left_out_but_for_the_last_one(policy):
    batch = batch_of(policy, ADVANTAGES)
    assert drop_tied_rows(batch)["advantages"].tolist() == pytest.approx(ADVANTAGES[:4])
    assert len(drop_tied_rows(batch)["prompt_ids"]) == 4
    assert drop_tied_rows(batch_of(policy, [0.0] * 8))["advantages"].tolist() == [0.0]


def test_the_passes_of_a_step_keep_groups_together_and_lose_no_row(policy, tmp_path):
    """TRL's shuffle mixes four groups of four over the four passes."""
    options = {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 4, "max_steps": 1}
    trainer = make_trainer(CpuGRPOTrainer, policy, tmp_path, **options)
    written, passes = [], []
    score, compute_loss = trainer._generate_and_score_completions, trainer._compute_loss
    trainer._generate_and_score_completions = lambda rows: (written.append(score(rows)), written[-1])[1]
    trainer._compute_loss = lambda model, inputs: (passes.append(inputs), compute_loss(model, inputs))[1]
    trainer.train()

    def rows_of(batch: dict[str, torch.Tensor]) -> list[tuple]:
        columns = [batch[name].tolist() for name in ("prompt_ids", "completion_ids", "advantages")]
        return [
            (*prompt, *completion, advantage) for prompt, completion, advantage in zip(*columns, strict=True)
        ]

    assert [len(each["prompt_ids"].unique(dim=0)) for each in passes] == [1, 1, 1, 1]
    assert sorted(row for each in passes for row in rows_of(each)) == sorted(rows_of(written[0]))
    assert all(each["num_items_in_batch"] == written[0]["num_items_in_batch"] for each in passes)


def test_a_completion_without_a_token_has_no_log_probability(policy):
    logprobs, _ = completion_logprobs(policy.model, [[5, 6], [5, 6]], [[], [7]], pad=0, width=3)
    assert logprobs[0].tolist() == [0, 0, 0] and logprobs[1, 0] < 0 == logprobs[1, 1]


def test_little_of_what_is_read_of_completions_is_padding(policy):
    completions = [completion + [7] * 20 for completion in ragged(16, 80, 3)]
    shapes: list[torch.Size] = []
    body = policy.model.get_base_model().base_model
    with body.register_forward_pre_hook(
        lambda _, __, options: shapes.append(options["input_ids"].shape), with_kwargs=True
    ):
        completion_logprobs(policy.model, [[5, 6, 7]] * 16, completions, pad=0, width=100)
    assert shapes[0] == (1, 3) and sum(rows for rows, _ in shapes[1:]) == 16
    num_read = sum(map(torch.Size.numel, shapes[1:]))
    assert num_read < LENGTH_RATIO * sum(map(len, completions)) < 16 * max(map(len, completions))


def test_adapters_are_as_before_after_the_cast(policy):
    ids = torch.tensor([[5, 6, 7]])
    before = policy.model(ids).logits
    with adapters_in_weights_dtype(policy.model):
        assert (policy.model(ids).logits - before).abs().max() < 1e-4
    assert torch.equal(policy.model(ids).logits, before)


def test_a_run_trains_and_its_metrics_have_the_names_of_trl(policy, tmp_path):
    histories = []
    for kind in (GRPOTrainer, CpuGRPOTrainer):
        trainer = make_trainer(kind, policy, tmp_path / kind.__name__)
        start = copy.deepcopy([p.data for p in policy.model.parameters() if p.requires_grad])
        trainer.train()
        moved = [p for p in policy.model.parameters() if p.requires_grad]
        assert any(not torch.equal(old, new.data) for old, new in zip(start, moved, strict=True))
        histories.append({name for row in trainer.state.log_history for name in row})
    assert histories[0] == histories[1]


def test_what_the_short_step_does_not_know_is_left_to_trl(policy, tmp_path, monkeypatch):
    for options in (
        {"top_p": 0.9}, {"repetition_penalty": 1.1}, {"generation_kwargs": {"suppress_tokens": [7]}},
        {"cast_lm_head_to_fp32": True},
    ):  # fmt: skip
        assert not make_trainer(CpuGRPOTrainer, policy, tmp_path, **options).is_lean, options
    trainer, config = make_trainer(CpuGRPOTrainer, policy, tmp_path), policy.model.config
    for holder, name, value in (
        (type(trainer.accelerator), "num_processes", 2),
        (config, "rope_parameters", {"rope_type": "dynamic"}),
        (config, "rope_scaling", {"rope_type": "dynamic"}),  # transformers 4.57
    ):
        assert trainer.is_lean
        with monkeypatch.context() as patch:
            if name == "rope_scaling":
                patch.setattr(config, "rope_parameters", None, raising=False)
            patch.setattr(holder, name, value, raising=False)
            assert not trainer.is_lean, name


@pytest.mark.parametrize("kind", [AnswerTrainer, CpuGRPOTrainer])
def test_a_completion_ends_with_its_program_and_nothing_behind_it_is_trained_on(kind, cache_dir, tmp_path):
    policy = load_tiny(cache_dir, id="tiny_code")  # its tokens are bytes, and ends of programs with a fence
    prefix = "```python\ndef f(n):"
    trainer = make_trainer(kind, policy, tmp_path, prefix=prefix, temperature=1.5)
    batches = []
    compute_loss = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: (batches.append(inputs), compute_loss(model, inputs))[1]
    trainer.train()

    def is_complete(tokens: torch.Tensor) -> bool:
        text = policy.tokenizer.decode(tokens, skip_special_tokens=True)
        return is_complete_answer(text, prefix=prefix, function="f")

    num_complete = 0
    for batch, logs in zip(batches, trainer.state.log_history, strict=False):
        masks = batch["completion_mask"].bool()
        rows = [ids[mask] for ids, mask in zip(batch["completion_ids"], masks, strict=True)]
        assert not any(is_complete(row[:-1]) for row in rows)
        is_cut = [not is_complete(row) and int(row[-1]) not in trainer.eos_token_ids for row in rows]
        assert logs["completions/clipped_ratio"] == sum(is_cut) / len(rows)
        ended = [len(row) for row, cut in zip(rows, is_cut, strict=True) if not cut] or [0]
        assert logs["completions/mean_terminated_length"] == pytest.approx(sum(ended) / len(ended))
        assert logs["completions/max_terminated_length"] == max(ended)
        num_complete += sum(map(is_complete, rows))
    assert num_complete >= 2


@pytest.mark.parametrize("kind", [AnswerTrainer, CpuGRPOTrainer])
def test_only_completions_that_the_limit_cut_are_masked(kind, cache_dir, tmp_path):
    trainer = make_trainer(
        kind, load_tiny(cache_dir, id="tiny_code"), tmp_path, prefix="```python\ndef f(n):", temperature=1.5,
        mask_truncated_completions=True,
    )  # fmt: skip
    seen, write = [], trainer._generate_and_score_completions

    def watched(inputs):
        batch = write(inputs)
        seen.append((batch["completion_mask"], batch["num_items_in_batch"], [*trainer._is_cut]))
        return batch

    trainer._generate_and_score_completions = watched
    trainer.train()
    for mask, num_items, is_cut in seen:
        assert mask.any(1).tolist() == [not cut for cut in is_cut]
        assert num_items == mask.sum()
    assert {cut for *_, is_cut in seen for cut in is_cut} == {True, False}


def test_adapters_on_4_bits_are_trained_from_the_bits_that_were_measured(cache_dir, tmp_path):
    policy = load_tiny(cache_dir)
    train_by_hand(policy)
    policy.model.get_base_model().is_loaded_in_4bit = True  # all that TRL asks
    measured = hash_trained(policy)
    grpo.prepare_adapters(make_trainer(AnswerTrainer, policy, tmp_path))
    assert hash_trained(policy) == measured


def test_a_cpu_takes_the_short_step_and_a_gpu_does_not(policy):
    assert grpo.choose_trainer(policy) is CpuGRPOTrainer
    assert grpo.choose_trainer(Mock(device=torch.device("cuda"))) is AnswerTrainer


@pytest.mark.parametrize("kind", [GRPOTrainer, CpuGRPOTrainer])
def test_the_kl_that_is_measured_without_a_penalty_is_the_one_that_trl_logs_with_one(
    kind, policy, tmp_path, monkeypatch
):
    """Two passes a step of batches that hold completions of several lengths, and groups that tie."""
    monkeypatch.setattr(kl, "INTERVAL_STEPS", 1)
    start = {name: value.clone() for name, value in policy.model.state_dict().items()}
    logged = []
    for beta in (0.0, 1e-12):
        policy.model.load_state_dict(start)
        trainer = make_trainer(kind, policy, tmp_path, beta=beta, gradient_accumulation_steps=2)
        grpo.prepare_adapters(trainer)
        if beta == 0:
            trainer.add_callback(kl.MeasureKl(trainer))
        trainer.train()
        logged.append([row["kl"] for row in trainer.state.log_history if "kl" in row])
    assert len(logged[0]) == 2 and min(logged[0]) > 1e-3
    assert logged[0] == pytest.approx(logged[1], rel=1e-4)


def test_the_kl_is_that_of_the_completions_and_leaves_no_trace(policy, tmp_path):
    trainer = make_trainer(CpuGRPOTrainer, policy, tmp_path)
    batch, random_state = batch_of(policy, ADVANTAGES), torch.get_rng_state()
    trainer.model.train()
    value = kl.measure_kl(trainer, batch)
    assert trainer.model.training and torch.equal(torch.get_rng_state(), random_state)
    assert all(parameter.grad is None for parameter in policy.model.parameters())
    assert [name for name, each in policy.model.named_parameters() if each.requires_grad]
    batch["completion_ids"] = torch.where(batch["completion_mask"] == 0, 7, batch["completion_ids"])
    assert kl.measure_kl(trainer, batch) == pytest.approx(value, rel=1e-6) and value > 0
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            parameter.data.zero_()
    assert kl.measure_kl(trainer, batch) == 0
