"""Every `rlnb ...` line of the documents and notebooks is accepted as it is written."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import CODE

from rlnb import cli
from rlnb.batch import local, overview, prefetch
from rlnb.machine import probe, recommend
from rlnb.params import load_params, resolve
from rlnb.run import headless

ROOT = Path(__file__).parents[1]
NAMES = "run|sweep|submit|runs|results|prefetch|eval|export|configure|doctor"
COMMAND = re.compile(rf"(?:|.*[ /])(?:rlnb (?=(?:{NAMES})\b)|slurm/run\.sbatch )")
# What the reader has to make first, and what `rlnb` names before that.
NOT_YET = {
    "run notebooks/grpo_code_execution.ipynb --profile a100x2 --set training.max_steps=2": "a100x2",
    "sweep notebooks/grpo_code_execution.ipynb --profile cpu --seeds 1-3 --set reward.preset=short": "short",
}


def lines_of(text: str) -> Iterator[str]:
    """The commands in a page's code, without `rlnb`, variables before it and comments behind it."""
    blocks = "\n".join(CODE.findall(text)).replace("\\\n", " ").splitlines()
    inline = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", CODE.sub("", text))]
    for line in blocks + inline:
        line = re.sub(r"\s+#.*$", "", line)
        if match := COMMAND.match(line):
            command = line[match.end() :].strip()
            yield f"run {command}" if match[0].endswith(".sbatch ") else command


def read_documents() -> set[str]:
    commands: set[str] = set()
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")):
        commands.update(lines_of(page.read_text(encoding="utf-8")))
    for notebook in ROOT.glob("notebooks/*.ipynb"):
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            commands.update(lines_of("".join(cell["source"])) if cell["cell_type"] == "markdown" else ())
    return commands


def is_mention(command: str) -> bool:
    """Whether it names a command, or an option of it, without arguments: `rlnb run`, `rlnb eval --plus`."""
    words = command.split()[1:]
    return "..." in words or not any("/" in word or "=" in word for word in words)


COMMANDS = sorted(read_documents())
WHOLE = [command for command in COMMANDS if not is_mention(command)]


def test_there_are_commands_in_the_documents():
    assert len(WHOLE) > 30 and NOT_YET.keys() <= set(WHOLE)


@pytest.mark.parametrize("command", [command for command in COMMANDS if is_mention(command)])
def test_a_command_or_option_that_is_mentioned_exists(command, capsys):
    name, *options = command.partition(" -- ")[0].split()  # sbatch's own options follow
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    named = {word for word in options if word.startswith("--")}
    assert named <= set(re.findall(r"--[\w-]+", capsys.readouterr().out))


@pytest.fixture
def asked(monkeypatch, tmp_path) -> list[object]:
    """What a command would do once its options and parameters are accepted."""
    asked: list[object] = []

    def read_parameters(notebook: Path, *, profile, overrides, **_) -> int:
        params = load_params(notebook.stem, profile=profile or "auto", overrides=overrides, place="--set")
        resolve(params, recommend(probe(ask_hub=False))).check_files()
        asked.append(params)
        return 0

    for name in [name for name in os.environ if name.startswith(("RLNB_", "MBPP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(headless, "run_notebook", read_parameters)
    monkeypatch.setattr(local, "run_points", lambda sweep, **_: asked.append(sweep) or 0)
    monkeypatch.setattr(prefetch, "prefetch", lambda notebook, **_: asked.append(notebook) or 0)
    monkeypatch.setattr(overview, "list_runs", lambda folders: asked.append(folders) or [])
    monkeypatch.chdir(tmp_path)
    return asked


@pytest.mark.parametrize("command", WHOLE)
def test_a_command_is_accepted_as_it_is_written(command, asked, capsys):
    """A run up to its directory, a sweep to its first run, a job to its script; of others the options."""
    words = [str(ROOT / word) if (ROOT / word).is_file() else word for word in shlex.split(command)]
    words = words[: words.index(">")] if ">" in words else words
    if words[0] not in ("run", "sweep", "submit", "prefetch", "runs") or "FILE.yaml" in words:
        assert cli.make_parser().parse_args(words).command
        return
    if "DIR" in words:  # a run of the default profile, which goes on
        words += ["--profile", "default"]
    dry = ["--dry-run"] if words[0] == "submit" else []
    code, said = cli.main([*words[:2], *dry, *words[2:]]), capsys.readouterr()
    if command in NOT_YET:
        assert code == 2 and NOT_YET[command] in said.err
    else:
        assert code == 0 and (asked or "#SBATCH" in said.out), said.err
