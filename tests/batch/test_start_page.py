"""The start page, by its cells, on a project with a gallery and runs."""

import json
import re
import shutil
from pathlib import Path

from rlnb.batch.start_page import show_notebooks
from rlnb.run.directory import end_attempt, start_attempt

ROOT = Path(__file__).parents[2]
NAME = "spiral_self_play"


def row(project: Path) -> str:
    return show_notebooks(NAME, root=project).data


def test_a_notebook_has_its_title_picture_minutes_and_how_its_runs_ended(tmp_path):
    for folder in ("notebooks", "docs/gallery"):
        (tmp_path / folder).mkdir(parents=True)
        shutil.copy(ROOT / folder / f"{NAME}.ipynb", tmp_path / folder)
    before = row(tmp_path)
    assert f"<a href='{NAME}.ipynb'><b>Self-play: a language model learns a game" in before
    assert re.search(r"\d+ min on two CPU cores<br>never run here", before)
    gallery = re.findall(r"base64,([^']{100})", before)
    for name in ("cpu-001", "cpu-002"):
        directory = tmp_path / "outputs" / NAME / name
        directory.mkdir(parents=True)
        status = start_attempt(directory, notebook="attempt-01.ipynb")
    end_attempt(directory, status, state="done")
    output = {"output_type": "display_data", "data": {"image/png": "A" * 100}, "metadata": {}}
    (directory / "attempt-01.ipynb").write_text(json.dumps({"cells": [{"outputs": [output]}]}))
    after = row(tmp_path)
    link = f"<a href='../outputs/{NAME}/cpu-002/attempt-01.ipynb'>cpu-002</a>"
    assert "0 min here, cpu-002<br>" in after and re.search(f"1 running, 1 finished; {link}", after)
    assert gallery and re.findall(r"base64,([^']{100})", after) == ["A" * 100]
    status = start_attempt(
        directory, notebook="attempt-01.ipynb"
    )  # after one in JupyterLab, which has no file
    end_attempt(directory, status, state="done")
    assert link in row(tmp_path)
    (directory / "attempt-01.ipynb").rename(directory / "results.json")  # as in JupyterLab
    in_lab = row(tmp_path)
    assert f"<a href='../outputs/{NAME}/cpu-002/results.json'>cpu-002</a>" in in_lab
    assert re.findall(r"base64,([^']{100})", in_lab) == gallery


def test_the_start_page_names_every_other_notebook_once():
    notebooks = {path.stem for path in ROOT.glob("notebooks/*.ipynb")} - {"00_start"}
    page = (ROOT / "notebooks" / "00_start.ipynb").read_text()
    assert sorted(re.findall(r'\\"(\w+)\\",  #', page)) == sorted(notebooks)


def test_the_queue_is_asked_once_for_all_runs(tmp_path, monkeypatch):
    for folder in ("notebooks", "docs/gallery"):
        (tmp_path / folder).mkdir(parents=True)
        shutil.copy(ROOT / folder / f"{NAME}.ipynb", tmp_path / folder)
    for number in range(3):
        directory = tmp_path / "outputs" / NAME / f"run-{number}"
        directory.mkdir(parents=True)
        status = {"state": "running", "attempt": 1, "notebook": "a", "pid": 1, "host": "elsewhere"}
        status |= {"started": "2026-01-01T00:00:00+00:00", "job": str(number + 7)}
        (directory / "status.json").write_text(json.dumps(status))
    asked = []
    for module in ("rlnb.run.directory", "rlnb.batch.start_page"):
        monkeypatch.setattr(f"{module}.jobs_in_queue", lambda jobs: asked.append(set(jobs)) or {})
    assert "3 killed" in row(tmp_path) and asked == [{"7", "8", "9"}]
