"""GRPOTrainer whose completions end with their answer: by text, on any tokenizer, not by a token's id."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import cast

import torch
from datasets import Dataset
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedModel, StoppingCriteriaList
from trl import GRPOConfig, GRPOTrainer

from rlnb.grpo.config import SETTINGS_OF_LEARNING, check_as_asked
from rlnb.policy.decoding import Complete, cut_answer
from rlnb.policy.generation import stop_when_complete
from rlnb.source_code.extraction import ends_of_answers

# A closing fence on a line of its own, for vLLM, which knows texts only. An opening one names its language.
VLLM_STOPS = {"stop": ["\n```\n"], "include_stop_str_in_output": True}
Rewards = Callable[..., list[float | None]] | Sequence[Callable[..., list[float | None]]]
Written = tuple[list[list[int]], list[list[float]] | None]  # tokens, and vLLM's log-probabilities


class AnswerTrainer(GRPOTrainer):
    """A GRPOTrainer that ends a completion as soon as it `is_complete_answer`; later text is not trained on.

    The rows of the dataset have the columns `prefix` and `function`; without them only the model's end tokens
    count. A completion that the limit of tokens cut is what TRL calls truncated, in its metrics and for
    `mask_truncated_completions`; TRL itself takes for that what does not end in an end token. Methods: those
    of TRL 1.15 and 1.16.
    """

    _rows: Sequence[Mapping[str, object]] = ()
    _is_cut: Sequence[bool] = ()
    mask_truncated_completions: bool

    def __init__(
        self,
        model: PreTrainedModel | str,
        reward_funcs: Rewards,
        args: GRPOConfig | None = None,
        train_dataset: Dataset | None = None,
        **options: object,
    ) -> None:
        if args and args.use_vllm and not isinstance(model, str) and not args.generation_kwargs:
            args.generation_kwargs = choose_vllm_stops(model, train_dataset)
        settings = {name: getattr(args, name) for name in SETTINGS_OF_LEARNING} if args else {}
        adapters = []
        if isinstance(model, PreTrainedModel | PeftModel) and getattr(model, "is_loaded_in_4bit", False):
            adapters = [(each, each.data) for each in model.parameters() if each.requires_grad]
        super().__init__(model, reward_funcs, args=args, train_dataset=train_dataset, **options)
        for parameter, values in adapters:  # TRL has rounded them to bfloat16: most updates would be lost
            parameter.data = values
        check_as_asked(self.args, settings)

    def create_model_card(self, *_: object, **__: object) -> None:
        """Write none: TRL's knows neither the model nor what was measured. `rlnb export` writes one."""

    @property
    def is_complete(self) -> Complete | None:
        """Whether the completion of a row of this batch has its end; None where the dataset does not say."""
        rows = self._rows
        if not rows or "function" not in rows[0]:
            return None

        prefixes, functions = ([str(row[column]) for row in rows] for column in ("prefix", "function"))
        ends = ends_of_answers(prefixes, functions)
        return lambda row, tokens: ends(row, self._tokenizer.decode(tokens, skip_special_tokens=True))

    def _generate_and_score_completions(self, inputs: list[dict[str, object]]) -> dict[str, object]:
        self._rows = inputs
        masks, self.mask_truncated_completions = self.mask_truncated_completions, False
        try:
            batch: dict[str, object] = super()._generate_and_score_completions(inputs)
        finally:
            self.mask_truncated_completions = masks
        if masks:
            mask = cast(torch.Tensor, batch["completion_mask"])
            mask = mask * ~torch.tensor(self._is_cut, device=mask.device)[:, None]
            num_items = self.accelerator.gather(mask.sum()).sum()
            batch |= {"completion_mask": mask, "num_items_in_batch": num_items}
        return batch

    def _generate_single_turn(self, prompt_ids: list[list[int]], *rest: object, **options: object) -> Written:
        completions, logprobs = self.write_completions(prompt_ids, *rest, **options)
        ends, is_complete = self.eos_token_ids, self.is_complete
        answers = [cut_answer(tokens, ends, is_complete, row=row) for row, tokens in enumerate(completions)]
        self._is_cut = [is_cut for _, is_cut in answers]
        completions = [tokens for tokens, _ in answers]
        if logprobs is not None:
            logprobs = [row[: len(tokens)] for row, tokens in zip(logprobs, completions, strict=True)]
        return completions, logprobs

    def write_completions(self, prompt_ids: list[list[int]], *rest: object, **options: object) -> Written:
        """Let TRL write the completions, some tokens beyond their end."""
        model = self.accelerator.unwrap_model(self.model_wrapped)
        keeping = keeping_base(model) if self.use_vllm else nullcontext()
        with stopping(model, self.is_complete), keeping:
            written: Written = super()._generate_single_turn(prompt_ids, *rest, **options)
        return written

    def _generate(self, prompts: list[object]) -> tuple[object, ...]:
        output: tuple[object, ...] = super()._generate(prompts)
        completions = cast(list[list[int]], output[1])
        pairs = [[float(len(ids)), float(cut)] for ids, cut in zip(completions, self._is_cut, strict=True)]
        lengths, is_cut = self.accelerator.gather(torch.tensor(pairs, device=self.accelerator.device)).T
        ended = lengths[is_cut == 0] if not is_cut.all() else lengths.new_zeros(1)
        metrics = self._metrics["train" if self.model.training else "eval"]
        metrics["completions/clipped_ratio"][-1] = is_cut.mean().item()
        for name in ("mean", "min", "max"):
            metrics[f"completions/{name}_terminated_length"][-1] = getattr(ended, name)().item()
        return output


def choose_vllm_stops(model: PreTrainedModel, prompts: Dataset) -> dict[str, object]:
    """Return what ends a completion in vLLM, which itself reads only the end tokens of the model's files."""
    stops: dict[str, object] = {"stop_token_ids": model.generation_config.eos_token_id}
    if "prefix" in prompts.column_names and all(text.startswith("```") for text in prompts["prefix"]):
        stops |= VLLM_STOPS
    return stops


@contextmanager
def keeping_base(model: PreTrainedModel) -> Iterator[None]:
    """Put the base's weights back after TRL has merged the adapters into them, for vLLM, and out again.

    In 16 bits each time rounds, and the base would wander off step by step
    (https://github.com/huggingface/trl/issues/6688).
    """
    layers = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    weights = [weight for layer in layers for weight in layer.get_base_layer().parameters(recurse=False)]
    kept = [weight.detach().to("cpu", copy=True) for weight in weights]
    try:
        yield
    finally:
        for weight, before in zip(weights, kept, strict=True):
            weight.data.copy_(before)
        for layer in layers:  # an error came in between
            layer.merged_adapters.clear()


@contextmanager
def stopping(model: PreTrainedModel, is_complete: Complete | None) -> Iterator[None]:
    """Let the model's `generate`, which TRL calls, end rows that are complete."""
    if is_complete is None:
        yield
        return
    generate, former = model.generate, vars(model).get("generate")  # where unsloth puts one
    criteria = StoppingCriteriaList([stop_when_complete(is_complete)])
    vars(model)["generate"] = partial(generate, stopping_criteria=criteria)
    try:
        yield
    finally:
        del vars(model)["generate"]
        if former is not None:
            vars(model)["generate"] = former
