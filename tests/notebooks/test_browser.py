"""What a person sees in a real browser: the start page, each notebook, and what its last cells offer.

JupyterLab runs as `make lab` starts it, in a copy of the project; Debian's chromium shows its pages.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from waiting import status_of, wait_for

from rlnb.run.tracking import read_metrics

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: see requirements/dev.txt")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]
ROOT = Path(__file__).parents[2]
PATIENCE = 900.0  # seconds, for a machine that is busy with other things
SHOWN = ".jp-NotebookPanel:not(.lm-mod-hidden)"
PROMPTS = f"[...document.querySelectorAll('{SHOWN} .jp-CodeCell .jp-InputPrompt')].map(it => it.innerText)"
ERROR = "[data-mime-type='application/vnd.jupyter.error'], [data-mime-type='application/vnd.jupyter.stderr']"
# Enough steps to see the training run, and to stop it before its end.
STEPS = 30
LONGER = {"training.max_steps": STEPS, "training.save_steps": 999, "evaluation.eval_interval_steps": 999}


class Tab:
    """A page of the browser that shows JupyterLab with a notebook."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.problems: list[str] = []
        page.set_default_timeout(1000 * PATIENCE)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.goto(address)
        self.panel = page.locator(SHOWN)
        self.panel.locator(".jp-CodeCell").first.wait_for()

    def choose_in_run_menu(self, entry: str) -> None:
        """Choose what runs cells, and wait until they are queued."""
        self.page.get_by_text("rlnb | Idle").wait_for()  # sooner, JupyterLab would ask for a kernel
        self.page.locator(".lm-MenuBar-item", has_text="Run").click()
        self.page.locator(".lm-Menu-item", has_text=re.compile(f"^{entry}$")).click()
        self.page.wait_for_function(f"{PROMPTS}.includes('[*]:')")

    def wait_for_cells(self) -> list[str]:
        """Wait until no cell runs or is queued, and return the errors that are shown."""
        self.page.wait_for_function(f"!{PROMPTS}.includes('[*]:')", polling=200)
        self.page.get_by_text("rlnb | Idle").wait_for()
        return self.panel.locator(ERROR).all_inner_texts()

    def run(self, entry: str = "Run All Cells") -> None:
        """Run cells until all cells of the notebook have run, and none has raised anything."""
        self.choose_in_run_menu(entry)
        assert self.wait_for_cells() == []
        assert all(re.fullmatch(r"\[\d+\]:", prompt) for prompt in self.page.evaluate(PROMPTS))

    def sees(self, text: str) -> None:
        """Wait until this, a regular expression, is seen."""
        self.panel.get_by_text(re.compile(text)).filter(visible=True).first.wait_for()


class Lab:
    """JupyterLab in a project's folder, and a browser."""

    def __init__(self, project: Path, url: str, token: str, browser: Any) -> None:
        self.project, self.url, self.token, self.browser = project, url, token, browser
        self.tabs: list[Tab] = []

    def open(self, path: str = "") -> Tab:
        """Open a page of JupyterLab, without the notebooks that earlier ones have shown."""
        address = f"{self.url}{path}?token={self.token}{'&reset' if path else ''}"
        self.tabs.append(Tab(self.browser.new_page(viewport={"width": 1400, "height": 1000}), address))
        return self.tabs[-1]

    def open_notebook(self, name: str) -> Tab:
        return self.open(f"lab/tree/notebooks/{name}.ipynb")

    def set_parameters(self, name: str, overrides: dict[str, object]) -> Path:
        """Write profile tiny and overrides into a notebook's parameters cell; return its run's folder."""
        given = {"profile": "tiny", "output_dir": f"outputs/{name}/run", "overrides": overrides}
        notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
        (cell,) = [each for each in notebook.cells if "parameters" in each.metadata.get("tags", [])]
        for field, value in given.items():
            cell.source, count = re.subn(rf"(?m)^({field}: \w+ = )[^#]*", rf"\g<1>{value!r}  ", cell.source)
            assert count == 1, field
        nbformat.write(notebook, self.project / "notebooks" / f"{name}.ipynb")
        return self.project / "outputs" / name / "run"

    def close_tabs(self) -> None:
        """Close the pages and shut their kernels down, and look whether a page had an error."""
        sessions, token = f"{self.url}api/sessions", {"token": self.token}
        request = self.browser.new_context().request
        for session in request.get(sessions, params=token).json():
            request.delete(f"{sessions}/{session['id']}", params=token, timeout=1000 * PATIENCE)
        problems = [problem for tab in self.tabs for problem in tab.problems]
        while self.tabs:
            self.tabs.pop().page.close()
        assert problems == []


@pytest.fixture(scope="module")
def started_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Start JupyterLab in a copy of the project, and a browser."""
    home = tmp_path_factory.mktemp("lab")
    project = home / "project"
    for name in ("rlnb", "params", "notebooks", "docs", "jupyter"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, project)
    settings = home / "settings" / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"windowingMode": "none"}')  # else cells that are out of sight are not in the page
    folders = {"JUPYTER_RUNTIME_DIR": "runtime", "JUPYTERLAB_SETTINGS_DIR": "settings"}
    folders |= {"JUPYTERLAB_WORKSPACES_DIR": "workspaces", "JUPYTER_CONFIG_PATH": "project/jupyter"}
    environment = os.environ | {name: str(home / folder) for name, folder in folders.items()}
    environment |= {"PYTHONPATH": str(project), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--port=0"]
    address = re.compile(r"(http://localhost:\d+/)\S*\?token=(\w+)\n")
    path = home / "lab.log"
    with path.open("w") as log, subprocess.Popen(
        command, cwd=project, env=environment, stdout=log, stderr=log
    ) as lab, playwright.sync_playwright() as driver:  # fmt: skip
        try:
            wait_for(lambda: address.search(path.read_text()), seconds=PATIENCE)
            url, token = address.findall(path.read_text())[0]
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            yield Lab(project, url, token, browser)
            browser.close()
        finally:
            lab.terminate()


@pytest.fixture
def lab(started_lab: Lab) -> Iterator[Lab]:
    yield started_lab
    started_lab.close_tabs()


def steps_of(run: Path) -> list[int]:
    """Return the trained steps of a run so far."""
    path = run / "metrics.jsonl"
    return [row["step"] for row in read_metrics(path) if row["step"]] if path.exists() else []


def open_a_step_of_the_completions(tab: Tab) -> None:
    for summary in (r"^\d+ completions of \d+ steps$", "^by step$", "^step 1: mean reward"):
        tab.panel.get_by_text(re.compile(summary)).click()
    table = tab.panel.locator("details", has_text="step 1: mean reward").last.locator("table").first
    assert table.locator("th").all_inner_texts() == ["reward", "outcome", "task", "completion"]
    reward, outcome, task, completion = table.locator("tbody tr").first.locator("td").all_inner_texts()
    assert float(reward) <= 1 and outcome and "def " in task and completion.strip()


def play_2048(tab: Tab) -> None:
    tab.sees("ongoing after 0 moves")
    for side in ("left", "up"):
        tab.panel.get_by_title(side, exact=True).click()
    tab.sees("ongoing after [12] moves")


def bet_at_kuhn_poker(tab: Tab) -> None:
    tab.sees("^Your move")
    tab.panel.get_by_role("button", name="bet", exact=True).click()
    tab.sees(r"^You (won|lost) \([+-][12]\)")
    tab.panel.get_by_role("button", name="New game").click()
    tab.sees("^Your move")


def mark_a_cell(tab: Tab) -> None:
    free = tab.panel.locator(".rlnb-cell:enabled")
    assert free.count() == 9
    free.nth(4).click()
    tab.sees("The model's move:")
    assert free.count() == 7
    marks = tab.panel.locator(".rlnb-cell").all_inner_texts()
    assert marks[4].strip() and len({mark for mark in marks if mark.strip()}) == 2


def test_the_start_page_comes_first_and_its_links_open_notebooks(lab: Lab) -> None:
    tab = lab.open()
    assert tab.page.url.endswith("/lab/tree/notebooks/00_start.ipynb")
    tab.run()
    rows = tab.panel.locator(".jp-OutputArea td", has_text=" min on two CPU cores").all_inner_texts()
    assert len(rows) == 7 and all("never run here" in row for row in rows)
    tab.panel.get_by_role("link", name="PPO: a language model climbs a ladder of games").click()
    tab.sees("^PPO: a language model climbs")


@pytest.mark.parametrize(
    "name, use_last_cells",
    [
        ("mbpp_eval", None),
        ("ppo_openspiel", bet_at_kuhn_poker),
        ("gpt_oss_2048", play_2048),
        ("grpo_code_game", None),
    ],
)
def test_a_notebook_runs_to_its_end_and_its_last_cells_can_be_used(
    name: str, use_last_cells: Callable[[Tab], None] | None, lab: Lab
) -> None:
    run = lab.set_parameters(name, {})
    tab = lab.open_notebook(name)
    tab.run()
    assert status_of(run)["state"] == "done"
    if use_last_cells:
        use_last_cells(tab)
        assert tab.wait_for_cells() == []


@pytest.mark.parametrize(
    "name, use_last_cells",
    [("grpo_code_execution", open_a_step_of_the_completions), ("spiral_self_play", mark_a_cell)],
)
def test_a_training_that_the_square_button_stops_goes_on_in_the_same_cell_to_the_end(
    name: str, use_last_cells: Callable[[Tab], None], lab: Lab
) -> None:
    run = lab.set_parameters(name, LONGER)
    tab = lab.open_notebook(name)
    tab.choose_in_run_menu("Run All Cells")
    wait_for(lambda: steps_of(run), seconds=PATIENCE)
    tab.panel.locator("[data-command='notebook:interrupt-kernel']").click()
    (error,) = tab.wait_for_cells()
    assert "SIGINT: stopped, and this step is saved; run the cell again to go on from it" in error
    stopped = len(steps_of(run))
    assert stopped < STEPS and (run / "checkpoints" / f"checkpoint-{stopped}").is_dir()
    tab.panel.locator(".jp-CodeCell", has=tab.page.locator(ERROR)).locator(".jp-InputPrompt").click()
    tab.run("Run Selected Cell and All Below")
    assert steps_of(run) == [*range(1, STEPS + 1)] and status_of(run)["state"] == "done"
    use_last_cells(tab)


def test_a_training_whose_tab_is_closed_goes_on_and_is_watched_and_compared(lab: Lab) -> None:
    run = lab.set_parameters("spiral_self_play", LONGER)
    shutil.rmtree(run, ignore_errors=True)
    tab = lab.open_notebook("spiral_self_play")
    tab.choose_in_run_menu("Run All Cells")
    wait_for(lambda: steps_of(run), seconds=PATIENCE)
    tab.page.close()
    notebook = nbformat.read(ROOT / "notebooks" / "00_start.ipynb", as_version=4)
    notebook.cells[-1].source = f"import rlnb\n\nrlnb.watch({str(run)!r})"
    nbformat.write(notebook, lab.project / "notebooks" / "watch.ipynb")
    watching = lab.open_notebook("watch")
    watching.run()
    watching.sees("^running$")
    watching.sees("^done$")
    assert steps_of(run) == [*range(1, STEPS + 1)] and status_of(run)["state"] == "done"
    lab.set_parameters("compare_runs", {})
    comparison = lab.open_notebook("compare_runs")
    comparison.run()
    comparison.sees("Runs: 1; groups: 1.")
    assert comparison.panel.locator(".jp-OutputArea img").count() >= 1
