"""The sections that notebooks share.

A field's help, units included, is told once: by `described` where that fits on a line, else by the docstring
below it.
"""

import os
import re
from collections.abc import Iterator
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from rlnb.params.bases import find_adapter_fault
from rlnb.params.model_cache import find_id_fault

# YAML and JSON have lists and no tuples; the items of a list are still checked strictly.
Names = Annotated[tuple[str, ...], Field(strict=False)]
Switch = Literal["auto", True, False]
Value = TypeVar("Value")
PATH_FIELDS = (
    "id", "adapters", "cache_dir", "output_dir", "resume", "source", "path", "samples_path", "plus_path",
    "directories",
)  # fmt: skip
WEIGHT_FILES = ("weights.safetensors", "adapter_model.safetensors")  # of all weights, of adapters


def described(default: Value, help: str, **bounds: Any) -> Value:
    """Return a field with its help; bounds: as of pydantic's Field."""
    field: Value = Field(default=default, description=help, **bounds)
    return field


def _server_address(url: str) -> str:
    """Return the base URL of a server. Raises ValueError, also for what may hold a password or a key."""
    if set("@?#") & set(url):
        raise ValueError(
            "holds a user, a password or a query, which would be written to params.yaml; write "
            "http://host:port, and a key into the variable OPENAI_API_KEY"
        )
    if url and not re.fullmatch(r"https?://[\w.:\[\]-]+(/\S*)?", url):
        raise ValueError("is not an address; write http://host:port, with /v1 for OpenAI's protocol")
    return url


# repr=False: messages do not show the value where it may hold a key.
ServerAddress = Annotated[str, AfterValidator(_server_address), Field(repr=False)]


class Conflict(NamedTuple):
    """A value that does not fit this machine or other fields; the reason ends in the remedy.

    others: fields that are involved and that the reason does not name.
    """

    field: str
    reason: str
    others: tuple[str, ...] = ()

    @property
    def involved(self) -> set[str]:
        return {self.field, *self.others, *re.findall(r"\w+\.\w+", self.reason)}


class Section(BaseModel):
    """Frozen, strict and closed to unknown fields; a whole number is accepted for a real one."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @field_validator(*PATH_FIELDS, mode="before", check_fields=False)
    @classmethod
    def _at_home(cls, value: object) -> object:
        # Here, once: some libraries expand ~, others make a directory named so.
        if isinstance(value, list | tuple):
            return type(value)(cls._at_home(item) for item in value)
        return os.path.expanduser(value) if isinstance(value, str) else value

    def __dir__(self) -> list[str]:
        """Return the names that completion offers: without pydantic's own methods."""
        return [name for name in super().__dir__() if name not in dir(BaseModel)]

    def getdoc(self) -> str:
        """Return a line for each field, which IPython shows for `params.training?`."""
        helps = self.__custom_documentations__
        return "\n".join(f"{name} = {getattr(self, name)!r}  {helps[name]}".rstrip() for name in helps)

    @property
    def __custom_documentations__(self) -> dict[str, str]:
        """The help of each field, which IPython shows for `params.training.learning_rate?`."""
        fields = type(self).model_fields
        return {name: " ".join((info.description or "").split()) for name, info in fields.items()}

    def conflicts(self) -> Iterator[Conflict]:
        """Values that do not go together, or name what is not there."""
        yield from ()


class NotebookParams(Section):
    """Base of each notebook's parameters; remembers where each value came from, for display only."""

    seed: int = described(42, "Seed of the data's order, the sampling and the adapters", ge=0, lt=2**32)
    output_dir: str = Field(default="outputs", min_length=1)
    """Directory for checkpoints, metrics and the trained model"""

    _sources: dict[str, str] = {}  # of each field that was given; pydantic copies it for each instance
    _names: dict[str, str] = {}  # by which it was given, such as learning_rate
    _profile: str = ""

    def __eq__(self, other: object) -> bool:
        # pydantic would also compare where the values came from.
        return isinstance(other, type(self)) and self.model_dump() == other.model_dump()

    def place_of(self, field: str) -> str:
        """Return where a field was given and by which name: "parameters cell: learning_rate"."""
        return f"{self._sources.get(field, 'default')}: {self._names.get(field, field)}"

    def conflicts(self) -> Iterator[Conflict]:
        for name in type(self).model_fields:
            section = getattr(self, name)
            if isinstance(section, Section):
                yield from section.conflicts()

    def rank_conflicts(self, num_ranks: int) -> Iterator[Conflict]:
        """Yield what so many ranks cannot share."""
        return iter(())

    def check_files(self) -> None:
        """Raise ParamsError for files and games that a run loads late; called on resolved parameters."""


class ModelParams(Section):
    id: str = Field(default="auto", min_length=1)
    """Hub id or folder of the model; auto = by this machine's memory, embedded = SmolLM2-135M from a package,
    tiny = random weights for tests, tiny_code = the same, and some of its code runs"""
    cache_dir: str = described("./model_cache", "Directory for downloaded and converted models", min_length=1)
    engine: Literal["auto", "transformers", "unsloth"] = "auto"
    """What loads the model; auto = unsloth on GPUs where it is installed, else transformers"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the weights; auto = the best that this machine computes with"""
    load_in_4bit: Switch = "auto"
    """Quantize the frozen weights to 4 bits (bitsandbytes, CUDA only); auto = on small GPUs"""
    offload_embedding: Switch = "auto"
    """Keep embeddings in the CPU's memory, by unsloth: saves a GiB; auto = where it finds memory tight"""
    check_memory: bool = described(True, "Refuse a run that by estimate does not fit; false = only say so")
    adapters: str = described("", "Trained adapters to begin with: a run's adapters/ or a checkpoint of it")
    lora_rank: int = described(16, "Rank of the LoRA adapters", ge=1, le=1024)
    lora_alpha: int = described(32, "LoRA scale; the adapter's output is multiplied by alpha / rank", ge=1)
    lora_target_modules: Names = Field(default=("all-linear",), min_length=1)
    """Names of the layers with adapters; all-linear alone = every linear layer"""
    thinking: bool = described(False, "Let a model with a thinking mode, such as Qwen3, think first")
    system: str | None = described(None, "System message of chats; null = the one of the model's template")

    def conflicts(self) -> Iterator[Conflict]:
        if fault := find_id_fault(self.id):
            yield Conflict("model.id", fault)
        if self.adapters and (fault := find_adapter_fault(self.adapters)):
            yield Conflict("model.adapters", fault)


class TasksParams(Section):
    source: str = "mbpp"
    """Programming tasks: mbpp, builtin = a generated set, or the path of a file, one task a line"""
    prompt: Literal["chat", "prefilled", "completion"] = "chat"
    """chat = a question, prefilled = the reply begins with the function's first line, completion = signature
    and docstring for a base model"""
    held_out: Literal["report", "development"] = "report"
    """Built-in tasks to measure on: those of reports, or others, for choosing parameters"""

    def conflicts(self) -> Iterator[Conflict]:
        if self.source not in ("mbpp", "builtin") and not os.path.isfile(self.source):
            yield Conflict("tasks.source", f"is not mbpp, not builtin, and not a file in {os.getcwd()}")
        if self.held_out == "development" and self.source != "builtin":
            yield Conflict("tasks.held_out", "is for the built-in tasks only", ("tasks.source",))


class MbppParams(Section):
    source: Literal["auto", "hub", "builtin"] = "auto"
    """MBPP from the hub, or 50 problems of its format that come with rlnb; auto = as tasks.source, or hub"""
    path: str = described("", "File in MBPP's format, or its directory; wins over source, for tasks as well")
    subset: Literal["full", "sanitized"] = "full"
    """All 974 problems, or the 427 that people have checked"""
    split: Literal["test", "validation", "train", "prompt", "all"] = "test"
    """Which problems, by task_id as published; where evaluation.plus_path is set, those of that file"""
    template: Literal["paper", "docstring", "chat"] = "chat"
    """Form of the question: paper = 3 solved examples and all asserts, docstring = a program to be continued,
    one assert, chat = a user's message, one assert"""
    max_completion_length: int = described(512, "Longest completion (tokens)", ge=1)

    def conflicts(self) -> Iterator[Conflict]:
        if self.path and not os.path.exists(self.path):
            yield Conflict("mbpp.path", f"is neither file nor directory in {os.getcwd()}")


class MbppInTrainingParams(MbppParams):
    enabled: bool = described(True, "Measure pass rates on MBPP too, whenever evaluation measures")


class SandboxParams(Section):
    timeout_seconds: float = described(5.0, "Time limit of one program (seconds)", gt=0, le=600)
    memory_mib: int = described(512, "Memory limit of one program (MiB)", ge=64)
    require: Literal["basic", "standard", "strict"] = "standard"
    """Least isolation: basic = process and limits, standard = system calls and files, strict = namespaces"""


class SamplingParams(Section):
    """How completions are drawn and judged, wherever something is evaluated."""

    num_samples: int = described(1, "Sampled completions of each task or problem", ge=1)
    temperature: float = Field(default=0.2, ge=0, le=2)
    """Sampling temperature; 0 = greedy. Of MBPP alone in self-play, which plays at game.temperature, and in
    the code game, whose programs are sampled at 1"""
    batch_size: int = described(32, "Completions written, or read by an opponent, side by side", ge=1)
    timeout_seconds: float = Field(default=10.0, gt=0, le=600)
    """Time limit of a program, or of loading it and of each call, without waits for a processor (seconds)"""

    def conflicts(self) -> Iterator[Conflict]:
        if self.temperature == 0 and self.num_samples > 1:
            yield Conflict("evaluation.num_samples", "asks for equal samples at temperature 0; write 1")


class EvaluationParams(SamplingParams):
    enabled: bool = described(True, "Measure pass rates before, during and after training")
    num_questions: int = described(5, "Problems of MBPP, the same ones at every evaluation", ge=1)
    eval_interval_steps: int = described(20, "Steps between evaluations; 0 = only before and after", ge=0)


class TrackingParams(Section):
    wandb: Literal["auto", "online", "offline", "disabled"] = "auto"
    """Weights & Biases; auto = online where a key is found and the network may be used"""
    project: str = described("rlnb", "Weights & Biases project", min_length=1)


class ModelRunParams(NotebookParams):
    """The parameters of every notebook that runs a model and programs."""

    model: ModelParams = ModelParams()
    sandbox: SandboxParams = SandboxParams()
    tracking: TrackingParams = TrackingParams()


def value_of(params: NotebookParams, field: str) -> Any:
    """Return the value of "seed" or "training.max_steps"."""
    return attrgetter(field)(params)


def get_value(params: NotebookParams, field: str, default: Any = 0) -> Any:
    """Return the value of a field, the default where this notebook has no such field."""
    section, _, name = field.partition(".")
    return getattr(getattr(params, section, None), name, default)
