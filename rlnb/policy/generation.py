"""Completions of a policy, in padded batches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from rlnb.policy.loading import Policy


@contextmanager
def generating(policy: Policy) -> Iterator[None]:
    """Evaluation mode without gradients, the random state as it was afterwards.

    Layers check `training` before they checkpoint, so gradient checkpointing is off without a switch;
    switching it would lose its settings, and unsloth's own kind of it.
    """
    model, was_training = policy.model, policy.model.training
    # This rank's device alone: asking the others for their state would allocate memory on each.
    devices = [policy.device] if policy.device.type == "cuda" else []
    model.eval()
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            yield
    finally:
        model.train(was_training)


def generate(
    policy: Policy,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    temperature: float,
    seed: int = 0,
    batch_size: int = 32,
    reference: bool = False,
    ends: Sequence[int] | None = None,
    is_complete: Callable[[str], bool] | None = None,
    received: Callable[[int, str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[str]:
    """One completion a prompt, in their order; special tokens removed, a stop token kept when it is text.

    Ends at the tokens `ends`, by default where the policy stops (`Policy.stop_at`), or some tokens after
    `is_complete(completion)` has become true. temperature 0 is greedy. Sampling depends on `seed`,
    `batch_size` and the prompts alone, and leaves the global random state as it was. reference: with the
    adapters disabled. received: called with (number of the prompt, completion) as soon as a batch is written,
    shortest prompts first; progress with (done, all) after each batch.
    """
    tokenizer, model = policy.tokenizer, policy.model
    ends = list(model.generation_config.eos_token_id if ends is None else ends)
    sampling = (
        {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        if temperature
        else {"do_sample": False}
    )
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    completions = [""] * len(prompts)
    adapters_off = model.disable_adapter() if reference else nullcontext()
    with generating(policy), adapters_off:
        torch.manual_seed(seed)
        num_done = 0
        for rows in batches(order, [len(prompts[row]) for row in order], batch_size):
            batch = tokenizer(
                [prompts[row] for row in rows], return_tensors="pt", padding=True, padding_side="left"
            )
            batch = {name: batch[name].to(policy.device) for name in ("input_ids", "attention_mask")}
            prompt_length = batch["input_ids"].shape[1]
            stopping = [StopWhenComplete(tokenizer, prompt_length, is_complete)] if is_complete else []
            output = model.generate(
                **batch, **sampling, max_new_tokens=max_new_tokens, use_cache=True,
                eos_token_id=ends, pad_token_id=tokenizer.pad_token_id,
                stopping_criteria=StoppingCriteriaList(stopping),
            )  # fmt: skip
            new_tokens = output[:, prompt_length:].tolist()
            for row, tokens in zip(rows, new_tokens, strict=True):
                completions[row] = tokenizer.decode(until_end(tokens, ends), skip_special_tokens=True)
                if received:
                    received(row, completions[row])
            num_done += len(rows)
            if progress:
                progress(num_done, len(order))
    return completions


def batches(rows: Sequence[int], lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """The rows, sorted by their prompts' lengths, in batches whose longest is at most twice their shortest.

    One prompt of two thousand letters would otherwise pad, and slow down, a batch of short ones.
    """
    batch: list[int] = []
    shortest = 0
    for row, length in zip(rows, lengths, strict=True):
        if batch and (len(batch) == batch_size or length > 2 * shortest):
            yield batch
            batch = []
        if not batch:
            shortest = length
        batch.append(row)
    if batch:
        yield batch


class StopWhenComplete(StoppingCriteria):
    """Ends the rows of a batch whose completion is complete; looks every LOOK_TOKENS tokens."""

    LOOK_TOKENS = 8

    def __init__(self, tokenizer: Any, prompt_length: int, is_complete: Callable[[str], bool]) -> None:
        self.tokenizer = tokenizer
        self.prompt_length = prompt_length
        self.is_complete = is_complete

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        done = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        new_tokens = input_ids[:, self.prompt_length :]
        if new_tokens.shape[1] % self.LOOK_TOKENS == 0:
            texts = self.tokenizer.batch_decode(new_tokens, skip_special_tokens=True)
            done = torch.tensor([self.is_complete(text) for text in texts], device=input_ids.device)
        return done


def until_end(tokens: Sequence[int], ends: Sequence[int]) -> Sequence[int]:
    """The tokens up to and with the first end token; what follows is padding."""
    for index, token in enumerate(tokens):
        if token in ends:
            return tokens[: index + 1]
    return tokens
