"""Every keyword that we pass to trl, transformers, peft and unsloth exists in the versions that we pin.

There is no GPU in CI, so nobody would notice a renamed argument of the CUDA sets before a user does. Both
sides are read as syntax trees: our calls, notebooks included, and the libraries' definitions. What an object
is, follows from its name: `policy.model.generate(...)` is a call of transformers' models.
"""

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from library_sources import LibrarySources, installed_folder
from torch.nn import Module

ROOT = Path(__file__).parents[1]
LIBRARIES = ("trl", "transformers", "peft", "unsloth")
# Methods that hand their **kwargs on to those of other classes.
HANDED_ON = {
    "AutoModelForCausalLM.from_pretrained": ("PreTrainedModel.from_pretrained",),
    "AutoTokenizer.from_pretrained": ("PreTrainedTokenizerBase.from_pretrained",),
    "PreTrainedTokenizerFast.from_pretrained": ("PreTrainedTokenizerFast",),
    "PretrainedConfig.get_config_dict": ("PretrainedConfig.from_pretrained",),
    "LlamaForCausalLM.generate": ("GenerationConfig", "LlamaForCausalLM.forward"),
}
# What an object is, by the last part of its name. A Llama stands for all models: its bases have the methods.
MODEL = ("transformers", "LlamaForCausalLM")
OBJECTS = {
    "model": MODEL,
    "language_model": MODEL,
    "merged": MODEL,
    "decoder": ("transformers", "LlamaModel"),
    "body": ("transformers", "LlamaModel"),
    "tokenizer": ("transformers", "PreTrainedTokenizerFast"),
    "cache": ("transformers", "DynamicCache"),
    "trainer": ("trl", "GRPOTrainer"),
}
CALLED = {"LlamaForCausalLM": "forward", "LlamaModel": "forward", "PreTrainedTokenizerFast": "__call__"}
# What the wrappers of peft and unsloth add to a model.
ADDED_METHODS = {
    "delete_adapter": ("peft", "PeftModel.delete_adapter"),
    "disable_adapter": ("peft", "PeftModel.disable_adapter"),
    "get_base_model": ("peft", "PeftModel.get_base_model"),
    "for_training": ("unsloth", "FastLlamaModel.for_training"),
    "save_pretrained_merged": ("unsloth", "unsloth_save_pretrained_merged"),
}
OF_OTHERS = {*dir(Module), "model_copy", "model_dump", "model_validate"}  # torch's; pydantic's parameters
OTHER_MEANING = {  # a folder, a file's content, the lines of a program, a prompt
    ("rlnb/policy/file_formats.py", "tokenizer"),
    ("rlnb/run/memory.py", "cache"),
    ("rlnb/code_game/programs.py", "body"),
    ("rlnb/game_2048/evaluation.py", "body"),
}
FREE = {"PreTrainedTokenizerFast.apply_chat_template(**options)"}  # variables of the template
TOKENIZED = {name: ["input_ids", "attention_mask"] for name in ("batch", "padded", "tokens")}  # a tokenizer's
CHOICE = "GRPOTrainer = grpo.choose_trainer(policy)"
# Calls that a set does not know, and why they stay.
KNOWN = {
    "volta": {
        # transformers 4.57 swallows it in **kwargs, and has no other format to save in.
        "rlnb/policy/export.py: LlamaForCausalLM.save_pretrained takes no save_original_format",
        # Asked of later versions alone.
        "rlnb/policy/loading.py: AutoTokenizer.from_pretrained takes no mistral_format",
        "rlnb/policy/cpu_attention.py: sdpa_attention_forward takes no position_bias",
    }
}
PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class LibraryCall:
    """A call into a library. name: "AutoTokenizer.from_pretrained". unread: after ** and no dict."""

    place: str
    library: str
    name: str
    keywords: tuple[str, ...]
    unread: tuple[str, ...]


def library_calls(source: str, place: str) -> Iterator[LibraryCall]:
    """The calls of classes and functions imported from LIBRARIES, and of methods of their instances."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name: (node.module.partition(".")[0], alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in LIBRARIES
        for alias in node.names
    }
    # Classes of ours, called like the library's of this name.
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "rlnb.grpo.config":
            imported |= {name.name: ("trl", name.name) for name in node.names if name.name == "GRPOConfig"}
        elif isinstance(node, ast.Assign) and ast.unparse(node) == CHOICE:
            imported["GRPOTrainer"] = ("trl", "GRPOTrainer")
    given = TOKENIZED | MACHINE | dict_keys(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        owner, _, method = ast.unparse(node.func).partition(".")
        if owner in imported and "." not in method:
            library, name = imported[owner]
            called = f"{name}.{method}" if method else name
        elif of_object := object_call(node.func, place):
            library, called = of_object
        else:
            continue
        keywords, unread = [], []
        for keyword in node.keywords:
            if keyword.arg is not None:
                keywords.append(keyword.arg)
            elif ast.unparse(keyword.value) in given:
                keywords += given[ast.unparse(keyword.value)]
            else:
                unread.append(f"**{ast.unparse(keyword.value)}")
        yield LibraryCall(f"{place}:{node.lineno}", library, called, tuple(keywords), tuple(unread))


def object_call(function: ast.expr, place: str) -> tuple[str, str] | None:
    """The library and name of a method of an object ("policy.model.generate"), or of its call as a whole."""
    *_, receiver, name = ["", "", *ast.unparse(function).split(".")]
    if any((place, part) in OTHER_MEANING for part in (receiver, name)) or not name.isidentifier():
        return None
    if receiver in OBJECTS:
        library, owner = OBJECTS[receiver]
        is_model = owner == MODEL[1]
        if is_model and name in ADDED_METHODS:
            return ADDED_METHODS[name]
        return None if is_model and name in OF_OTHERS else (library, f"{owner}.{name}")
    if name in OBJECTS and OBJECTS[name][1] in CALLED:
        library, owner = OBJECTS[name]
        return library, f"{owner}.{CALLED[owner]}"
    return None


def dict_keys(tree: ast.Module) -> dict[str, list[str]]:
    """The keys of every dict of a file by the variable's name, whether given at once or one by one."""
    keys: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Dict):
            texts = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            keys.setdefault(target.id, []).extend(texts)
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            keys.setdefault(ast.unparse(target.value), []).append(target.slice.value)
    return keys


def our_calls(root: Path) -> list[LibraryCall]:
    """The library calls of rlnb/, benchmarks/ and the notebooks."""
    calls: list[LibraryCall] = []
    for path in sorted([*root.glob("rlnb/**/*.py"), *root.glob("benchmarks/**/*.py")]):
        calls += library_calls(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix())
    for path in sorted(root.glob("notebooks/*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        source = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        calls += library_calls(source, path.relative_to(root).as_posix())
    return calls


def unknown_keywords(calls: list[LibraryCall], sources: LibrarySources) -> list[str]:
    """What these versions do not have, one line a problem. Libraries that are not at hand are passed over."""
    problems = []
    for call in calls:
        if call.library not in sources.folders:
            continue
        known = sources.keywords(call.library, call.name)
        if known is not None and call.name in HANDED_ON:
            for name in HANDED_ON[call.name]:
                known |= sources.keywords(call.library, name) or set()
        if known is None:
            problems.append(f"{call.place}: {call.library} has no {call.name}")
            continue
        problems += [
            f"{call.place}: {call.name} takes no {name}" for name in call.keywords if name not in known
        ]
        problems += [
            f"{call.place}: {call.name}({name}): write it as a dict above"
            for name in call.unread
            if f"{call.name}({name})" not in FREE
        ]
    return problems


MACHINE = {
    "settings_of_machine(params, policy)": dict_keys(
        ast.parse((ROOT / "rlnb" / "grpo" / "config.py").read_text(encoding="utf-8"))
    )["settings"]
}


@pytest.fixture(scope="session")
def installed() -> LibrarySources:
    folders = {library: installed_folder(library) for library in LIBRARIES}
    return LibrarySources({library: folder for library, folder in folders.items() if folder})


def test_the_installed_libraries_know_every_keyword_that_we_pass(installed):
    calls = our_calls(ROOT)
    read = {call.name for call in calls if call.library in installed.folders}
    assert {"GRPOConfig", "GRPOTrainer", "LoraConfig", "AutoModelForCausalLM.from_pretrained"} <= read
    assert {"LlamaForCausalLM.generate", "LlamaForCausalLM.forward", "GRPOTrainer.train"} <= read
    recipes = [call for call in calls if call.place.startswith("notebooks/") and call.library == "trl"]
    assert [call.name for call in recipes] == ["GRPOConfig", "GRPOTrainer"] * 3
    assert {"learning_rate", "vllm_mode"} <= {*recipes[0].keywords} and "reward_funcs" in recipes[1].keywords
    assert {"PreTrainedTokenizerFast.apply_chat_template", "PeftModel.disable_adapter"} <= read
    assert unknown_keywords(calls, installed) == []


def test_a_keyword_that_does_not_exist_is_found_wherever_it_is_given(installed):
    source = (
        "from trl import GRPOConfig, GRPOTrainer\n"
        "from transformers import AutoModelForCausalLM\n"
        "options = {'learning_rate': 1.0}\n"
        "options['vllm_max_model_len'] = 2048\n"
        "config = GRPOConfig(max_prompt_length=512, **options)\n"
        "trainer = GRPOTrainer('m', args=config, tokenizer=None)\n"
        "trainer.train(resume=True)\n"
        "AutoModelForCausalLM.from_pretrained('m', torch_dtyp=None, **elsewhere)\n"
        "from trl import PPOTrainer\nPPOTrainer(model=None)\n"
        "policy.model.generate(**batch, max_tokens=3)\n"
        "policy.model(input_ids=ids, keep_logits=1)\n"
        "policy.tokenizer.apply_chat_template(chat, tokenise=False, add_generation_prompt=True)\n"
        "self.tokenizer(texts, padding=True, pad_side='left')\n"
        "merged.save_somewhere(folder)\n"
        "trainer.model.delete_adapter('ref', quietly=True)\n"
        "model.eval(); model.requires_grad_(False); params.model.model_copy(update={})\n"
    )
    assert unknown_keywords(list(library_calls(source, "a.py")), installed) == [
        "a.py:5: GRPOConfig takes no max_prompt_length",
        "a.py:5: GRPOConfig takes no vllm_max_model_len",
        "a.py:6: GRPOTrainer takes no tokenizer",
        "a.py:7: GRPOTrainer.train takes no resume",
        "a.py:8: AutoModelForCausalLM.from_pretrained takes no torch_dtyp",
        "a.py:8: AutoModelForCausalLM.from_pretrained(**elsewhere): write it as a dict above",
        "a.py:10: trl has no PPOTrainer",
        "a.py:11: LlamaForCausalLM.generate takes no max_tokens",
        "a.py:12: LlamaForCausalLM.forward takes no keep_logits",
        "a.py:13: PreTrainedTokenizerFast.apply_chat_template takes no tokenise",
        "a.py:14: PreTrainedTokenizerFast.__call__ takes no pad_side",
        "a.py:15: transformers has no LlamaForCausalLM.save_somewhere",
        "a.py:16: PeftModel.delete_adapter takes no quietly",
    ]


def test_every_name_of_trl_in_the_walk_through_a_step_exists(installed):
    text = (ROOT / "docs" / "one_grpo_step.md").read_text(encoding="utf-8")
    assert missing_members(text, installed) == []
    assert len(re.findall(r"`GRPOTrainer\.\w+", text)) >= 10
    renamed = "`GRPOTrainer.train` calls `GRPOTrainer._do_it()`, not `GRPOConfig.betas`."
    assert missing_members(renamed, installed) == ["GRPOTrainer._do_it", "GRPOConfig.betas"]


def missing_members(text: str, sources: LibrarySources) -> list[str]:
    """`GRPOTrainer.x` and `GRPOConfig.x` in a text that trl does not have."""
    named = re.findall(r"`(GRPOTrainer|GRPOConfig|RepeatSampler)\.(\w+)", text)
    return [f"{owner}.{name}" for owner, name in named if name not in sources.members("trl", owner)]


@pytest.mark.slow
@pytest.mark.parametrize("requirements", ["cpu", "cuda", "vllm", "unsloth", "volta"])
def test_each_pinned_set_knows_every_keyword_that_we_pass(requirements, tmp_path):
    """Also those of machines that CI has not: the pinned wheels are downloaded and read, never installed."""
    pins = dict(PIN.findall((ROOT / "requirements" / f"{requirements}.txt").read_text()))
    calls = our_calls(ROOT)
    called = {call.library for call in calls}
    wanted = [library for library in LIBRARIES if library in pins and library in called]
    sources = LibrarySources({name: unpacked(f"{name}=={pins[name]}", tmp_path) for name in wanted})
    assert {"trl", "transformers", "peft"} <= sources.folders.keys()
    problems = {re.sub(r":\d+:", ":", problem) for problem in unknown_keywords(calls, sources)}
    assert problems == KNOWN.get(requirements, set())


def unpacked(requirement: str, folder: Path) -> Path:
    """The package folder of a wheel, downloaded alone; skips where pip or its index is missing."""
    library = requirement.partition("==")[0]
    pip = [sys.executable, "-m", "pip"]
    if importlib.util.find_spec("pip") is None:  # an environment that uv made without it
        pip = [shutil.which("pip") or pytest.skip("no pip to download wheels with")]
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder]
    command = [*pip, "download", *options, requirement]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        reason = (done.stderr.strip() or f"pip ended with {done.returncode}").splitlines()[-1]
        pytest.skip(f"{requirement} cannot be downloaded: {reason}")
    wheel = next(folder.glob(f"{library}-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder / library
