"""Every `rlnb ...` line of the documents and notebooks: checked as it is written, run with the tiny model.

All lines are parsed and their parameters read, for the profile that they name. Those that differ in nothing
but the profile are run once, at the profile tiny, the slow ones by `make slow`.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from pages import CODE
from plus_file import ADD

from rlnb import cli
from rlnb.batch import local, overview, points_table, prefetch
from rlnb.machine import probe, recommend
from rlnb.params import load_params, resolve
from rlnb.run import headless

ROOT = Path(__file__).parents[1]
SUBCOMMANDS = ("run", "eval", "export", "compare", "configure", "doctor")
ABOUT_MANY_RUNS = ("sweep", "submit", "prefetch", "results", "runs", "sync")
COMMAND = re.compile(
    rf"(?:|.*[ /])(?:rlnb (?=(?:{'|'.join((*SUBCOMMANDS, *ABOUT_MANY_RUNS))})\b)|slurm/run\.sbatch )"
)
# What is not run here, and why; its parameters are read all the same.
NOT_RUN = {
    "eval --endpoint http://localhost:8000/v1 --served-model NAME": "there is no server",
    "export --adapters ADAPTERS --repo-id me/my-model --set export.private=false": "it would upload",
    "export --adapters DIR --repo-id OWNER/NAME": "it would upload",
    "run notebooks/ppo_openspiel.ipynb --config config/train_config.json": "the file is the profile, of 4B",
}
NOT_RUN["run notebooks/compare_runs.ipynb"] = "it needs a sweep, which tests/notebooks makes"
# What the reader has to make first, and what `rlnb` says before that.
NOT_YET = {
    "run notebooks/grpo_code_execution.ipynb --profile a100x2 --set training.max_steps=2": "'a100x2'",
    "sweep notebooks/grpo_code_execution.ipynb --profile cpu --seeds 1-3 --set reward.preset=short": "short",
}
# Runs that others need; {names} stand for files of the run of that name.
EXECUTION = ("run", "notebooks/grpo_code_execution.ipynb")
MBPP = ("eval",)
PPO = ("run", "notebooks/ppo_openspiel.ipynb")
STRATEGIES = ("run", "notebooks/gpt_oss_2048.ipynb")
QUICK = {EXECUTION, MBPP}
SMALLER = {
    "training.max_steps": "4", "training.learning_rate": "5e-4", "opponent.refresh_steps": "1",
    "mbpp.max_completion_length": "16", "model.id": "tiny_code", "board.same_as": "{strategies}",
    "curriculum.start": "both",
}  # fmt: skip


def lines_of(text: str) -> Iterator[str]:
    """The commands in a page's code, without `rlnb`, variables before it and comments behind it."""
    blocks = "\n".join(CODE.findall(text)).replace("\\\n", " ").splitlines()
    inline = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", CODE.sub("", text))]
    for line in blocks + inline:
        line = re.sub(r"\s+#.*$", "", line)
        if match := COMMAND.match(line):
            command = line[match.end() :].strip()
            yield f"run {command}" if match[0].endswith(".sbatch ") else command


def read_documents() -> dict[str, str]:
    """{command: the page that has it first}."""
    commands: dict[str, str] = {}
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))):
        for command in lines_of(page.read_text(encoding="utf-8")):
            commands.setdefault(command, page.name)
    for notebook in sorted(ROOT.glob("notebooks/*.ipynb")):
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            for command in lines_of("".join(cell["source"])) if cell["cell_type"] == "markdown" else ():
                commands.setdefault(command, notebook.name)
    return commands


def is_mention(command: str) -> bool:
    """Whether it names a command, or an option of it, and is none: `rlnb run`, `rlnb eval --checkpoint`."""
    first, *others = command.split()
    if first in ABOUT_MANY_RUNS:
        return not any("/" in word for word in others)
    is_bare = not others and first not in ("eval", "configure", "doctor")
    return is_bare or others[-1:] in (["--check"], ["--checkpoint"], ["--help"])


COMMANDS = {command: page for command, page in read_documents().items() if not is_mention(command)}
MENTIONS = read_documents().keys() - COMMANDS.keys()


def make_tiny(command: str) -> tuple[str, ...]:
    """The words of a command at the profile tiny, with the names of files that tests make; without --out."""
    words, changed = iter(shlex.split(command)), []
    replaced = {
        "--adapters": "{adapters}", "--checkpoint": "{checkpoint}", "--base": "tiny_code", "--episodes": "4",
        "--samples": "{samples}", "--plus": "{plus}", "--output": "{mine}",
    }  # fmt: skip
    for word in words:
        if word in ("--profile", "--config") and "configure" not in changed:
            next(words)
        elif word == "--out":
            target = next(words)
            changed += ["--out", "{ppo}"] if target == "DIR" and "ppo" in changed[1] else []
        elif word == "--set":
            field, _, value = next(words).partition("=")
            changed += ["--set", f"{field}={SMALLER.get(field, value)}"]
        elif word in replaced:
            next(words)
            changed += [word, replaced[word]]
        elif changed[:1] == ["compare"] and "mbpp_eval/" in word:
            changed.append("{mbpp}")
        elif word.endswith("results.json") or word in ("FIRST", "SECOND"):
            changed.append("{strategies}/results.json" if word[1] == "/" else "{mbpp}/results.json")
        elif word == "<":
            break
        else:
            changed.append(word)
    if changed[0] in ("export", "eval") and "{adapters}" in changed and "--base" not in changed:
        changed += ["--set", "model.id=tiny_code"]  # the model that they belong to
    if "{samples}" in changed:
        changed += ["--set", "evaluation.k=[1]"]
    if "{ppo}" in changed:
        changed += ["--set", "training.max_steps=6"]  # that run is finished
    if "{plus}" in changed:
        changed += ["--set", "evaluation.num_questions=0"]
    return tuple(changed)


RUN_HERE = [command for command in COMMANDS if command.split()[0] in SUBCOMMANDS]
TINY = {make_tiny(command): command for command in reversed(RUN_HERE) if command not in (*NOT_RUN, *NOT_YET)}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, str]:
    """Files that need no run: enough for parameters to be accepted, and a problem of EvalPlus's form."""
    root = tmp_path_factory.mktemp("files")
    base = {"base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct"}
    (root / "adapter_config.json").write_text(json.dumps(base))
    for name in ("params.yaml", "trainer_state.json", "board_secret"):
        (root / name).touch()
    (root / "plus.jsonl").write_text(json.dumps(ADD) + "\n")
    sample = {"task_id": ADD["task_id"], "solution": ADD["canonical_solution"]}
    (root / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    (root / "older.json").write_text('{"model": {"use_4bit": false}, "execution": "local_openspiel"}')
    return {"samples": f"{root}/samples.jsonl", "plus": f"{root}/plus.jsonl", "root": str(root)}


def test_the_lists_of_what_is_not_run_name_commands_of_the_documents():
    assert {*NOT_RUN, *NOT_YET} <= COMMANDS.keys()
    assert len(COMMANDS) > 45 and TINY.keys() >= QUICK


@pytest.mark.parametrize("command", sorted(MENTIONS))
def test_a_command_or_option_that_is_mentioned_exists(command, capsys):
    name, *options = command.split()
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    named = {word for word in options if word.startswith("--")}
    assert named <= set(re.findall(r"--[\w-]+", capsys.readouterr().out))


def as_written(command: str, files: dict[str, str]) -> list[str]:
    """The words of a command, with files that are there in the place of those it names."""
    words, root = shlex.split(command), files["root"]
    for index, word in enumerate(words):
        before = words[index - 1]
        if before in ("--adapters", "--checkpoint"):
            words[index] = root
        elif before in ("--samples", "--plus", "--config"):
            words[index] = files.get(before[2:], f"{root}/older.json")
        elif word.startswith("board.same_as="):
            words[index] = f"board.same_as={root}"
        elif word == "DIR" and before == "--out" and words[0] == "run":  # whose run is a default one
            words += ["--profile", "default"]
    return words


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if command.split()[0] in ("run", "eval", "export")]
)
def test_the_parameters_of_a_command_are_accepted_as_it_is_written(command, files, monkeypatch, capsys):
    """All of `rlnb` up to the run itself, whose machine these profiles may not be for."""

    def read_parameters(notebook: Path, *, profile, overrides, out, ranks) -> int:
        assert (ROOT / notebook).is_file()
        params = load_params(notebook.stem, profile=profile or "auto", overrides=overrides, place="--set")
        resolve(params.complete(), recommend(probe(ask_hub=False))).check_files()
        return 0

    monkeypatch.setattr(headless, "run_notebook", read_parameters)
    for name in [name for name in os.environ if name.startswith(("RLNB_", "MBPP_"))]:
        monkeypatch.delenv(name)
    code, said = cli.main(as_written(command, files)), capsys.readouterr().err
    assert (code, NOT_YET[command] in said) == (2, True) if command in NOT_YET else (code, said) == (0, "")


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.split()[0] in ABOUT_MANY_RUNS])
def test_a_command_about_many_runs_is_accepted_as_it_is_written(command, monkeypatch, tmp_path, capsys):
    """A sweep up to its first run, a job up to its script, a prefetch up to the hub."""
    words = [str(ROOT / word) if (ROOT / word).is_file() else word for word in shlex.split(command)]
    words = words[: words.index(">")] if ">" in words else words
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("RLNB_", "MBPP_"))]:
        monkeypatch.delenv(name)
    asked: list[object] = []
    monkeypatch.setattr(local, "run_points", lambda sweep, **_: asked.append(sweep) or 0)
    monkeypatch.setattr(prefetch, "prefetch", lambda notebook, **_: asked.append(notebook) or 0)
    monkeypatch.setattr(points_table, "gather_results", lambda folders, **_: asked.append(folders) or [])
    monkeypatch.setattr(points_table, "group_results", lambda *_, **__: [points_table.Group("all runs", ())])
    monkeypatch.setattr(points_table, "choose_measures", lambda *_: [])
    monkeypatch.setattr(overview, "list_runs", lambda folders: asked.append(folders) or [])
    more = ["--dry-run"] if words[0] == "submit" else []
    code, said = cli.main([*words, *more]), capsys.readouterr()
    if command in NOT_YET:
        assert code == 2 and NOT_YET[command] in said.err
    else:
        assert code == 0 and (asked or "#SBATCH --time=" in said.out), said.err


class Runs:
    """Runs of commands by the tiny model, each once; {names} in them are files of other such runs."""

    def __init__(self, root: Path, files: dict[str, str]) -> None:
        self.root, self.files = root, files
        self.run = cache(self.run)

    def run(self, words: tuple[str, ...]) -> Path:
        """Run a command and return its directory."""
        directory = self.root / str(len([*self.root.iterdir()]))
        directory.mkdir()
        filled = [self.fill(word, directory) for word in words]
        if words[0] in ("run", "eval", "export"):
            in_place = "--out" in filled
            filled += [] if in_place else ["--profile", "tiny", "--out", str(directory)]
        answers = ""
        if words[0] == "configure" and "--yes" not in words:
            given = [] if len(words) > 1 else ["ppo_openspiel"]
            given += [] if "--profile" in words else ["cpu"]
            answers = "\n".join([*given, "training.max_steps", "9", "", f"{directory}/mine.yaml", ""])
        environ = {name: text for name, text in os.environ.items() if not name.startswith(("RLNB_", "MBPP_"))}
        done = subprocess.run(
            [sys.executable, "-m", "rlnb.cli", *filled],
            cwd=ROOT, input=answers, capture_output=True, text=True, timeout=400,
            env={**environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(filled)}\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
        return directory

    def fill(self, word: str, directory: Path) -> str:
        needed: dict[str, Callable[[], object]] = {
            "{adapters}": lambda: self.run(EXECUTION) / "adapters",
            "{checkpoint}": lambda: max((self.run(PPO) / "checkpoints").glob("checkpoint-*")),
            "{mbpp}": lambda: self.run(MBPP),
            "{strategies}": lambda: self.run(STRATEGIES),
            "{ppo}": lambda: shutil.copytree(self.run(PPO), directory, dirs_exist_ok=True),
            "{mine}": lambda: directory / "mine.yaml",
            "{samples}": lambda: self.files["samples"],
            "{plus}": lambda: self.files["plus"],
        }
        for name, make in needed.items():
            word = word.replace(name, str(make())) if name in word else word
        return word


@pytest.fixture(scope="module")
def runs(tmp_path_factory, files) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"), files)


def is_quick(words: tuple[str, ...]) -> bool:
    needs_mbpp_alone = words[0] == "compare" and "{strategies}" not in " ".join(words)
    return words in QUICK or needs_mbpp_alone or words == ("doctor",) or "--yes" in words


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=command, marks=() if is_quick(words) else pytest.mark.slow)
        for words, command in TINY.items()
    ],
)
def test_a_command_of_the_documents_runs_with_the_tiny_model(words, runs):
    runs.run(words)
