"""The page of troubleshooting: messages lead to headings that are there, and its estimates are the code's."""

import ast
import re
from pathlib import Path

import pytest
from pages import anchors

from rlnb.errors import TROUBLESHOOTING, see
from rlnb.machine import Machine, recommend
from rlnb.machine.table import MACHINES as TABLE
from rlnb.params import load_params
from rlnb.params.loading import choose_profile
from rlnb.run.memory import estimate_memory

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / TROUBLESHOOTING).read_text(encoding="utf-8")
MACHINES = {
    "T4 15": Machine("t4", "T4", (7, 5), 15.0, 8, "workstation", "unasked"),
    "V100 16": Machine("v100", "V100", (7, 0), 16.0, 8, "workstation", "unasked"),
    "V100 32": Machine("v100", "V100", (7, 0), 32.0, 8, "workstation", "unasked"),
    "A100 40": Machine("a100", "A100", (8, 0), 40.0, 8, "workstation", "unasked"),
    "A100 80": Machine("a100", "A100", (8, 0), 80.0, 8, "workstation", "unasked"),
    "H100 80": Machine("h100", "H100", (9, 0), 79.6, 8, "workstation", "unasked"),
    "GB10 120": Machine("gb10", "GB10", (12, 1), 119.7, 8, "workstation", "unasked"),
    "CPU 24": Machine("cpu_bf16", "", None, 24.0, 2, "workstation", "unasked"),
}
PIPELINES = (
    "grpo_code_execution", "grpo_code_game", "gpt_oss_2048", "spiral_self_play", "ppo_openspiel", "mbpp_eval",
)  # fmt: skip
SIGNS = {"fits": "{}", "tight": "*{}*", "does not fit": "**{}**"}


def topics() -> set[str]:
    """The arguments of `see` in the library."""
    calls = [
        node
        for path in (ROOT / "rlnb").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == see.__name__
    ]
    return {ast.literal_eval(call.args[0]) for call in calls}


def test_every_message_leads_to_a_heading_of_the_page_and_no_address_is_a_copy():
    assert len(topics()) >= 9
    assert topics() - anchors(PAGE) == set()
    copies = [path for path in (ROOT / "rlnb").rglob("*.py") if TROUBLESHOOTING in path.read_text()]
    assert copies == [ROOT / "rlnb" / "errors.py"]


def test_every_section_is_in_the_list_of_symptoms():
    listed = set(re.findall(r"\]\(#([\w-]+)\) \|$", PAGE, re.MULTILINE))
    assert listed == anchors(PAGE) - {"troubleshooting-by-symptom"}


def profile_of(notebook: str, machine: Machine) -> str:
    return choose_profile(notebook, recommend(machine, environ={}).profile)


def estimate_cell(notebook: str, machine: Machine) -> str:
    """GiB as the page shows them: *tight*, **does not fit**; a dash where it is refused without unsloth."""
    model = {"cache_dir": "nowhere"}  # the same everywhere: sizes as the models were published
    if notebook == "gpt_oss_2048" and machine.capability:
        if not any(row.unsloth for row in TABLE if row.name == machine.name):
            return "-"
        model["engine"] = "unsloth"
    elif notebook not in ("ppo_openspiel", "spiral_self_play"):
        model["engine"] = "transformers"
    profile = profile_of(notebook, machine)
    params = load_params(notebook, profile=profile, overrides={"model": model}, environ={})
    estimate = estimate_memory(params, machine, environ={"HF_HOME": "/nowhere"})
    return SIGNS[estimate.verdict].format(f"{estimate.total_gib:.1f}")


@pytest.mark.parametrize("notebook", PIPELINES)
def test_the_memory_in_the_table_is_what_the_code_estimates(notebook, monkeypatch):
    monkeypatch.setattr("rlnb.params.sections.installed_version", lambda package: "1")
    cells = [estimate_cell(notebook, machine) for machine in MACHINES.values()]
    assert f"| {notebook} | {' | '.join(cells)} |" in PAGE


def test_the_table_of_memory_names_the_machines_and_the_profiles_that_auto_takes():
    profiles = {
        tuple(profile_of(notebook, machine) for machine in MACHINES.values()) for notebook in PIPELINES
    }
    (row,) = profiles
    assert f"| pipeline | {' | '.join(MACHINES)} |" in PAGE
    assert f"| profile | {' | '.join(f'`{profile}`' for profile in row)} |" in PAGE


def test_each_duration_says_that_it_was_measured_and_of_which_profile():
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| (.+?) \| .+ \|$", PAGE, re.MULTILINE)
    rows = [row for row in rows if row[0] in PIPELINES]
    assert len(rows) >= 11
    for notebook, profile, duration in rows:
        load_params(notebook, profile=profile, environ={})
        assert re.fullmatch(r"measured: \d+( to \d+)? min", duration)
