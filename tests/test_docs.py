"""The documents say what is there: links, anchors, names, commands, the table of notebooks."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pages import CODE, anchors
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

from rlnb.code_execution.params import GrpoCodeExecutionParams
from rlnb.code_execution.reward import Judgement, compute_reward
from rlnb.code_execution.sources import load_tasks
from rlnb.notebook import load_cell
from rlnb.params import load_params
from rlnb.sandbox import _codec

ROOT = Path(__file__).parents[1]
NOTEBOOKS = {
    "grpo_code_execution", "mbpp_eval", "export_model", "gpt_oss_2048", "grpo_code_game", "spiral_self_play",
    "ppo_openspiel", "configure", "arena_eval", "compare_runs",
}  # fmt: skip
LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]+)\)")
LONGEST = {"README.md": 119, "CONTRIBUTING.md": 100}


PAGES = [
    path for pattern in ("*.md", "docs/**/*.md", "rlnb/**/*.md", "slurm/*.md") for path in ROOT.glob(pattern)
]


def dead_links() -> list[str]:
    """Relative links that lead nowhere, and links [`name`](file.py) to files that define no such name."""
    dead = []
    for page in PAGES:
        for label, target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
            if re.match(r"[a-z]+:", target):
                continue
            place, _, anchor = target.partition("#")
            file = page.parent / place if place else page
            where = f"{page.relative_to(ROOT)}: {target}"
            if not file.exists():
                dead.append(f"{where} is not there")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8")):
                dead.append(f"{where}: no such heading")
            elif file.suffix == ".py" and re.fullmatch(r"`\w+`", label):
                name = label.strip("`")
                defined = rf"^\s*(?:class |def )?{name}\b\s*[(:=]"
                if not re.search(defined, file.read_text(encoding="utf-8"), re.MULTILINE):
                    dead.append(f"{where} defines no {name}")
    return dead


def test_every_link_leads_somewhere():
    assert dead_links() == []


def test_readme_and_contributing_can_be_read_in_minutes_and_name_targets_of_make():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for name, longest in LONGEST.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert len(text.splitlines()) <= longest, name
        assert set(re.findall(r"(?:^ {4}|`)make ([a-z-]+)", text, re.MULTILINE)) <= targets, name


def test_the_page_of_mbpp_names_the_limits_by_which_an_input_is_skipped():
    page = " ".join((ROOT / "docs" / "mbpp_eval.md").read_text().split())
    assert f"an integer of more than {_codec.MAX_DIGITS} digits" in page
    assert f"nested more than {_codec.MAX_DEPTH} deep" in page
    assert f"a dict of more than {_codec.MAX_PAIRS:,} pairs" in page


def test_the_readme_names_every_notebook_and_whether_it_is_there():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| *\[?(\w+)\]?[^|]*\|(?:[^|]*\|){3} *(\w+) *\|$", text, re.MULTILINE)
    states = {name: state for name, state in rows if name != "notebook"}
    assert states == dict.fromkeys(NOTEBOOKS, "available")
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == NOTEBOOKS


def test_every_profile_that_a_page_names_exists():
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *ROOT.glob("docs/*.md")))
    profiles = {path.stem for path in ROOT.glob("params/*/*.yaml")} | {"auto"}
    named = set(re.findall(r"--profile (\w+)", text))
    assert named and named <= profiles


def test_the_page_of_the_first_notebook_has_its_profiles_as_they_are():
    page = (ROOT / "docs" / "grpo_code_execution.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `(\w+)` \|.*\| (\d+) in groups of (\d+), x (\d+) \| (\w+) \|$", page, re.MULTILINE
    )
    assert {"default", "cpu", "cpu_tests", "tiny"} <= {profile for profile, *_ in rows}
    for profile, *said in rows:
        params = load_params("grpo_code_execution", profile=profile, environ={})
        training, preset = params.training, params.reward.preset
        batch = training.per_device_train_batch_size * training.gradient_accumulation_steps
        assert said == [*map(str, (batch, training.num_generations, training.max_steps)), preset], profile


def test_the_page_of_the_first_notebook_has_its_rewards_and_tasks_as_they_are():
    page = (ROOT / "docs" / "grpo_code_execution.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z][^|]*) \| ([+-][\d.]+) \| ([^|]*) \|$", page, re.MULTILINE)
    execution = {outcome: float(reward) for outcome, reward, _ in rows}
    presets = load_cell("grpo_code_execution", "reward", {"params": GrpoCodeExecutionParams()})["presets"]
    outcomes = ("ok_with_output", "ok_without_output", "syntax_error", "runtime_error")
    broken = [Judgement("", outcome, None, (None,)) for outcome in outcomes]
    assert list(execution.values()) == [
        compute_reward(judgement, presets["execution"]) for judgement in broken
    ]
    right, wrong = (Judgement("", "ok_with_output", None, (passed,)) for passed in (True, False))
    pass_, wrong_, error = (compute_reward(each, presets["tests"]) for each in (right, wrong, broken[0]))
    assert f"{pass_:+} all tests pass, {wrong_} a wrong result, {error} a call raised" in page
    assert [tests for *_, tests in rows][2:] == [str(error)] * 2
    splits = load_tasks("builtin")
    tasks = [task for members in splits.values() for task in members]
    assert f"{len(tasks)} tasks of {len({task.family for task in tasks})} families" in page
    assert re.search(
        "[|] {train} [|] {known}, .*[|] {new}, ".format(**{k: len(v) for k, v in splits.items()}), page
    )


@pytest.mark.parametrize("command", ["run", "doctor"])
def test_the_commands_that_the_readme_shows_exist(command):
    assert f"rlnb {command}" in (ROOT / "README.md").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "rlnb.cli", command, "--help"], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 0


def test_the_sweep_of_the_page_is_a_profile_of_the_notebook_it_names(tmp_path):
    """As W&B's agent hands it over: nested parameters in a file of JSON."""
    page = (ROOT / "docs" / "configure.md").read_text(encoding="utf-8")
    sweep = yaml.safe_load(re.search(r"^    program: rlnb\n(?:    .+\n)+", page, re.MULTILINE)[0])

    def chosen(parameters: dict) -> dict:
        return {
            name: chosen(entry["parameters"])
            if "parameters" in entry
            else entry.get("values", [entry.get("value")])[0]
            for name, entry in parameters.items()
        }

    arguments = {name: {"value": value} for name, value in chosen(sweep["parameters"]).items()}
    given = create_sweep_command_args({"args": arguments})
    profile = tmp_path / "config-abc.json"
    profile.write_text(given["args_json"][0])
    (notebook,) = [Path(word).stem for word in sweep["command"] if word.endswith(".ipynb")]
    assert sweep["command"][-2:] == ["--profile", "${args_json_file}"]
    params = load_params(notebook, profile=str(profile), environ={})
    assert (params.model.id, params.training.learning_rate, params.training.num_generations) == (
        "embedded", 1e-5, 2
    )  # fmt: skip
