"""Completions of a policy, in padded batches."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from rlnb.policy.decoding import (
    LOOK_TOKENS,
    Complete,
    can_decode,
    cut_answer,
    decode,
    draw_uniform,
    sample_tokens,
)
from rlnb.policy.loading import Policy

BLOCK_TOKENS = 32  # tokens for which random numbers are drawn at a time
Progress = Callable[[int, int], None]  # called with (done, total)
Received = Callable[[int, "Completion"], None]  # called with (index of the prompt, its completion)


class Completion(NamedTuple):
    """A completion as text, without special tokens. is_cut: the limit of tokens ended it, not the model."""

    text: str
    is_cut: bool


@contextmanager
def evaluating(policy: Policy) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards unsloth's gradient checkpointing is as it was."""
    model, was_training = policy.model, policy.model.training
    switches = policy.engine == "unsloth" and was_training
    modes = (getattr(module, "gradient_checkpointing", False) for module in model.modules())
    checkpointing = next(filter(None, modes), False) if switches else False  # on, or unsloth's own kind
    if was_training:  # not if nested: a model with adapters has a thousand modules to switch
        model.eval()
    if policy.engine == "unsloth":
        os.environ["UNSLOTH_RETURN_HIDDEN_STATES"] = "0"  # a training pass that was interrupted leaves "1"
        for parameter in model.parameters():  # its adapters in 16 bits, which outlast a change of the weights
            vars(parameter).pop("_fast_lora", None)
    try:
        with torch.no_grad():
            yield
    finally:
        if switches:
            model.for_training(use_gradient_checkpointing=checkpointing)
        elif was_training:
            model.train()


@contextmanager
def generating(policy: Policy) -> Iterator[None]:
    """`evaluating` that also restores the random state."""
    # Only this rank's device: reading the state of others would allocate memory on each.
    devices = [policy.device] if policy.device.type == "cuda" else []
    with evaluating(policy), torch.random.fork_rng(devices=devices):
        yield


def generate(
    policy: Policy,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    temperature: float,
    seed: int = 0,
    batch_size: int = 32,
    is_complete: Callable[[int, str], bool] | None = None,
    received: Received | None = None,
    progress: Progress | None = None,
) -> list[Completion]:
    """Return one completion per prompt, in order.

    A completion ends at the model's end tokens, or with the token at which `is_complete(index of the prompt,
    text)` becomes true, and stays true. temperature 0 is greedy. Sampling depends only on `seed`,
    `batch_size` and the prompts; the global random state stays as it was. received: called with (index of the
    prompt, completion) when a batch is written; progress with (done, total), also at the start.
    """
    writing = _Writing(policy, max_new_tokens, temperature, batch_size, is_complete)
    completions = [Completion("", False)] * len(prompts)
    num_done = 0
    if progress:
        progress(0, len(prompts))
    with generating(policy):
        torch.manual_seed(seed)
        for rows, new_tokens in writing.batches(prompts):
            for row, tokens in zip(rows, new_tokens, strict=True):
                answer, is_cut = cut_answer(tokens, writing.ends, writing.is_row_complete([row]))
                completions[row] = Completion(writing.decode(answer), is_cut)
                if received:
                    received(row, completions[row])
            num_done += len(rows)
            if progress:
                progress(num_done, len(prompts))
    return completions


def generate_ids(
    policy: Policy,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    temperature: float,
    row_seeds: Sequence[int],
    batch_size: int = 32,
) -> list[tuple[tuple[int, ...], bool]]:
    """Return one completion per prompt, each sampled with its own seed.

    A completion is its tokens, end token included, and whether the limit of tokens ended it.
    """
    writing = _Writing(policy, max_new_tokens, temperature, batch_size)
    completions: dict[int, tuple[tuple[int, ...], bool]] = {}
    with generating(policy):
        for rows, new_tokens in writing.batches(prompts, row_seeds):
            for row, tokens in zip(rows, new_tokens, strict=True):
                answer, is_cut = cut_answer(tokens, writing.ends)
                completions[row] = tuple(answer), is_cut
    return [completions[row] for row in range(len(prompts))]


@dataclass(frozen=True)
class _Writing:
    """How completions are written: on a CPU by `decode`, elsewhere by transformers' `generate`."""

    policy: Policy
    max_new_tokens: int
    temperature: float
    batch_size: int
    is_complete: Callable[[int, str], bool] | None = None

    @property
    def ends(self) -> list[int]:
        ends: list[int] = self.policy.model.generation_config.eos_token_id
        return ends

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.policy.tokenizer.decode(tokens, skip_special_tokens=True))

    def is_row_complete(self, rows: Sequence[int]) -> Complete | None:
        """Return `is_complete` for a batch of these prompts."""
        is_complete = self.is_complete
        return is_complete and (lambda place, tokens: is_complete(rows[place], self.decode(tokens)))

    def batches(
        self, prompts: Sequence[str], row_seeds: Sequence[int] | None = None
    ) -> Iterator[tuple[list[int], Sequence[Sequence[int]]]]:
        """Yield for each batch the indices of its prompts and their new tokens, not cut at the end."""
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        for rows in batches(order, [len(prompts[row]) for row in order], self.batch_size):
            seeds = None if row_seeds is None else [row_seeds[row] for row in rows]
            # unsloth's models keep no keys and values in a cache that they are given.
            is_ours = self.policy.engine != "unsloth" and can_decode(self.policy.model)
            write = self.write_on_cpu if is_ours else self.write_by_transformers
            yield rows, write(rows, [prompts[row] for row in rows], seeds)

    def write_on_cpu(
        self, rows: Sequence[int], prompts: list[str], seeds: Sequence[int] | None
    ) -> Sequence[Sequence[int]]:
        tokenizer = self.policy.tokenizer
        columns = uniform_columns(seeds) if seeds else None
        return decode(
            self.policy.model, tokenizer(prompts)["input_ids"], max_new_tokens=self.max_new_tokens,
            temperature=self.temperature, ends=self.ends, pad=tokenizer.pad_token_id,
            draw=draw_uniform if columns is None else lambda rows: next(columns)[rows],
            is_complete=self.is_row_complete(rows),
        )  # fmt: skip

    def write_by_transformers(
        self, rows: Sequence[int], prompts: list[str], seeds: Sequence[int] | None
    ) -> Sequence[Sequence[int]]:
        tokenizer, device = self.policy.tokenizer, self.policy.device
        sampling: dict[str, object] = {"do_sample": False}
        if seeds is None and self.temperature:
            sampling = {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}
        batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
        batch = {name: batch[name].to(device) for name in ("input_ids", "attention_mask")}
        length = batch["input_ids"].shape[1]
        is_complete = self.is_row_complete(rows)
        stopping = [stop_when_complete(is_complete)] if is_complete else []
        by_row = [sample_by_row(seeds, self.temperature, device)] if seeds and self.temperature else []
        output = self.policy.model.generate(
            **batch, **sampling, max_new_tokens=self.max_new_tokens, use_cache=True,
            eos_token_id=list(self.ends), pad_token_id=tokenizer.pad_token_id,
            stopping_criteria=StoppingCriteriaList(stopping), logits_processor=LogitsProcessorList(by_row),
        )  # fmt: skip
        written: list[list[int]] = output[:, length:].tolist()
        return written


def stop_when_complete(is_complete: Complete) -> Callable[..., torch.Tensor]:
    """Return a criterion for transformers' `generate` that ends complete rows, every LOOK_TOKENS tokens."""
    prompt_lengths: list[int] = []  # one, once the first tokens have been written

    def find_complete(input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
        length = input_ids.shape[1]
        prompt_lengths.append(length - 1)
        is_look = (length - prompt_lengths[0]) % LOOK_TOKENS == 0
        rows = input_ids[:, prompt_lengths[0] :].tolist() if is_look else [[]] * len(input_ids)
        is_done = [is_look and is_complete(index, row) for index, row in enumerate(rows)]
        return torch.tensor(is_done, device=input_ids.device)

    return find_complete


def uniform_columns(seeds: Sequence[int], device: torch.device | None = None) -> Iterator[torch.Tensor]:
    """Yield a uniform number for each row, float (rows,), token by token, by that row's seed alone."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    while True:  # in blocks: a loop over the rows at every token would keep a GPU waiting
        block = torch.stack([torch.rand(BLOCK_TOKENS, generator=each) for each in generators], dim=1)
        yield from block.to(device)


def sample_by_row(
    seeds: Sequence[int], temperature: float, device: torch.device
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a processor for transformers' greedy `generate` that leaves each row the token it samples."""
    columns = uniform_columns(seeds, device)

    def keep_sampled(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        tokens = sample_tokens(scores, temperature, next(columns))
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)

    return keep_sampled


def batches(
    rows: Sequence[int], lengths: Sequence[int], batch_size: int, *, ratio: float = 2
) -> Iterator[list[int]]:
    """Yield batches of rows, sorted by lengths; in each the longest is at most `ratio` times the shortest."""
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or end - start == batch_size or lengths[end] > ratio * lengths[start]:
            yield list(rows[start:end])
            start = end
