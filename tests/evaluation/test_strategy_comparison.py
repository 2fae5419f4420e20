"""Results of two runs of gpt_oss_2048: compared on the same boards only, from their files."""

import json
from pathlib import Path

import pytest

from rlnb import cli
from rlnb.errors import ParamsError
from rlnb.evaluation.strategies import StrategyEvaluation, save_strategies
from rlnb.evaluation.strategy_comparison import (
    Played,
    compare_runs,
    compare_strategies,
    comparison_text,
    read_strategies,
)
from rlnb.params import load_params
from rlnb.params.gpt_oss_2048 import SECRET_FILE, GptOss2048Params
from rlnb.sandbox import Sandbox
from rlnb.tasks.strategy_prompts import fenced

BODIES = {
    "best": "    return max(legal_moves(board), key=lambda key: merged(board, key))",
    "worst": "    return min(legal_moves(board), key=lambda key: merged(board, key))",
    "bad": "    return None",
}


def params_of(run: Path, **board: str) -> GptOss2048Params:
    overrides = {"output_dir": str(run), "board": board}
    overrides["evaluation"] = {"num_boards": 6, "num_greedy_boards": 8}
    params = load_params("gpt_oss_2048", profile="tiny", overrides=overrides, environ={})
    assert isinstance(params, GptOss2048Params)
    return params


def play(params: GptOss2048Params, *names: str) -> list[Played]:
    """Held-out games of programs, the last one also as the greedy completion; written to results.json."""
    with Sandbox(num_workers=2) as sandbox:
        evaluate = StrategyEvaluation.from_params(params, sandbox)
        completions = [fenced(BODIES[name]) for name in names]
        played = [
            one
            for kind in evaluate.kinds
            for greedy, asked in ((False, completions), (True, completions[-1:]))
            for one in evaluate.judge(asked, "", kind, greedy=greedy)
        ]
    save_strategies(Path(params.output_dir) / "results.json", params, {"before": [], "after": played})
    return played


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """{name: directory}: "second" plays the boards of "first", "other" has its own."""
    root = tmp_path_factory.mktemp("runs")
    for name, digits in (("first", "5e"), ("other", "6f")):
        (root / name).mkdir()
        (root / name / SECRET_FILE).write_text(digits * 32)
    played = {
        "first": play(params_of(root / "first"), "worst", "bad"),
        "second": play(params_of(root / "second", same_as=str(root / "first")), "best"),
        "other": play(params_of(root / "other"), "best"),
    }
    return root, played


def test_runs_on_the_same_boards_are_compared_from_their_files_as_in_memory(runs):
    root, played = runs
    rows = compare_runs(root / "first" / "results.json", root / "second" / "results.json")
    assert rows == compare_strategies(played["first"], played["second"])
    by_name = {row["measure"]: row for row in rows}
    assert by_name["skill"]["difference"].low > 0
    assert (by_name["honest_share"]["before"], by_name["honest_share"]["after"]) == (0.5, 1.0)


def test_the_command_prints_the_difference_of_two_runs(runs, capsys):
    root, _ = runs
    assert cli.main(["compare", f"{root}/first/results.json", f"{root}/second/results.json"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("score: -") and "; difference +" in said[0]
    assert said[3].startswith("greedy_skill: none / +") and "difference" not in said[3]
    assert "honest_share: 0.500 / 1.000" in said


def test_a_measure_that_nothing_honest_gave_names_no_boards(runs):
    _, played = runs
    bad = [one for one in played["first"] if one.completion == fenced(BODIES["bad"])]
    rows = {row["measure"]: row for row in compare_strategies(bad, bad)}
    assert rows["skill"] == {"measure": "skill", "before": None, "after": None}
    assert "skill: none / none" in comparison_text([*rows.values()]).splitlines()


def test_runs_on_different_boards_are_refused_with_what_to_do(runs, capsys):
    root, _ = runs
    first, other = f"{root}/first/results.json", f"{root}/other/results.json"
    marks = [json.loads(Path(path).read_text())["board_fingerprint"] for path in (first, other)]
    assert cli.main(["compare", first, other]) == 2
    assert capsys.readouterr().err == (
        f"rlnb: {first} and {other}: were measured on different boards: board_fingerprint is {marks[0]!r} "
        f"and {marks[1]!r}; run the second again, in a new directory, with board.same_as={root}/first\n"
    )


def test_results_hold_the_fingerprint_of_the_boards_and_not_their_secret(runs):
    root, _ = runs
    for name, digits in (("first", "5e"), ("other", "6f")):
        text = (root / name / "results.json").read_text()
        assert digits * 32 not in text and len(json.loads(text)["board_fingerprint"]) == 16


@pytest.mark.parametrize(
    ("section", "field", "value", "reason"),
    [
        ("prompt", "preset", "board", "were asked different questions: prompt.preset is 'api' and 'board'"),
        ("board", "patience", 9, "played by different rules: board.patience is 64 and 9"),
        (
            "evaluation",
            "num_boards",
            7,
            "played different numbers of games: evaluation.num_boards is 6 and 7",
        ),
    ],
)
def test_runs_that_measured_differently_are_refused(section, field, value, reason, runs, tmp_path):
    first = runs[0] / "first" / "results.json"
    results = json.loads(first.read_text())
    results["params"][section][field] = value
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(ParamsError) as raised:
        compare_runs(first, tmp_path / "results.json")
    assert reason in str(raised.value) and "run the second again, in a new directory, with" in str(
        raised.value
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda results: results.pop("board_fingerprint"),
        lambda results: results["params"].pop("prompt"),
        lambda results: results["completions"]["after"][0].update(board="4x4"),
        lambda results: results["completions"]["after"][0]["games"].pop(),
        lambda results: results["completions"]["after"][0]["games"][0].__setitem__(2, "64"),
    ],
)
def test_a_file_that_is_not_such_a_result_is_refused(change, runs, tmp_path):
    results = json.loads((runs[0] / "first" / "results.json").read_text())
    change(results)
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(ParamsError, match="is not a result of gpt_oss_2048; name the results.json"):
        read_strategies(tmp_path / "results.json")


def test_a_run_without_held_out_games_is_refused(runs, tmp_path):
    results = json.loads((runs[0] / "first" / "results.json").read_text())
    results["completions"]["after"] = []
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(ParamsError, match="holds no held-out games; run with evaluation.enabled = true"):
        read_strategies(tmp_path / "results.json")
