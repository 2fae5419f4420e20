"""What a model wrote while it was trained, from the tables of completions that TRL writes, one a step."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import pandas

from rlnb.display.plots import spread
from rlnb.display.tables import Folded, Table, as_code
from rlnb.run.directory import read_last_row

LONGEST_TASK = 160  # characters of the end of a prompt
NUM_STEPS, NUM_OF_STEP, NUM_OF_OUTCOME = 12, 6, 8  # that are shown
PARQUET_END = b"PAR1"
COLUMNS = ["step", "reward", "outcome", "task", "completion"]


def list_tables(output_dir: str | Path) -> list[Path]:
    """Return the files of a run's completions, a step each, in the order of the steps.

    They are whole: TRL may be writing another, and a crash of the machine leaves one empty or half written.
    """
    paths = sorted(Path(output_dir).glob("checkpoints/completions/completions_*.parquet"))
    return list(filter(_is_whole, paths))


def _is_whole(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(PARQUET_END)))
        return size > 2 * len(PARQUET_END) and file.read() == PARQUET_END


def read_completions(paths: Iterable[Path]) -> pandas.DataFrame:
    """Return the completions of files, COLUMNS, best rewards first; a reward is the functions' sum."""
    tables = list(map(pandas.read_parquet, paths))
    for table in tables:  # before they are one: the reward cell may have been edited between two steps
        if "outcome" not in table:  # of a reward function that logs none
            table.insert(table.columns.get_loc("advantage"), "outcome", "")
        paid = table.loc[:, "completion":"outcome"].iloc[:, 1:-1]  # TRL writes the functions between them
        table["reward"] = paid.sum(axis=1, numeric_only=True)
    logged = pandas.concat(tables)
    logged["task"] = logged["prompt"].map(end_of_prompt)
    logged["completion"] = logged["completion"].map(lambda text: as_code(text, longest=400))
    return logged.sort_values(["reward", "step"], ascending=False, kind="stable")[COLUMNS]


def show_best_and_worst(output_dir: str | Path) -> Table | None:
    """Return the best and the worst completion of the last step whose table is written, None without one."""
    tables = list_tables(output_dir)
    if not tables:
        return None
    of_step = read_completions(tables[-1:])
    caption = f"The best and the worst of {len(of_step)} completions of step {of_step['step'].iloc[0]}."
    return Table(COLUMNS[1:], _rows(of_step.iloc[[0, -1]], COLUMNS[1:]), caption)


def show_last_game(output_dir: str | Path) -> Table | None:
    """Return the last game of a run's games.jsonl turn by turn, None without one."""
    game = read_last_row(Path(output_dir) / "games.jsonl")
    if game is None:
        return None
    rows = []
    for turn in game["turns"]:
        shares = dict(zip(turn["legal_actions"], turn["probabilities"], strict=False))
        share = shares.get(turn["action"])
        player = ("first, ", "second, ")[turn["seat"]] + game["players"][turn["seat"]]
        rows.append((turn["ply"] + 1, player, turn["text"], share, turn["problem"]))
    returns = " and ".join(f"{value:+g}" for value in game["returns"])
    caption = f"A game of {game['game']} of step {game['step']}; the seats' returns: {returns}."
    return Table(["move", "seat", "answer", "probability", "problem"], rows, caption)


def browse_completions(output_dir: str | Path) -> Folded:
    """Return a run's completions to look through: folded by step and by outcome, best rewards first.

    Plain HTML, which stays readable where a saved notebook's scripts do not run.
    """
    tables = list_tables(output_dir)
    if not tables:
        return Folded("No completions were logged.")
    logged = read_completions(tables)
    of_step = dict(list(logged.groupby("step")))
    by_step = [
        Folded(
            f"step {step}: mean reward {of_step[step]['reward'].mean():+.2f}",
            Table(COLUMNS[1:], _rows(of_step[step], COLUMNS[1:], limit=NUM_OF_STEP)),
        )
        for step in spread(sorted(of_step), NUM_STEPS)
    ]
    by_outcome = [
        Folded(
            f"{outcome}: {len(rows) / len(logged):.0%}, mean reward {rows['reward'].mean():+.2f}",
            Table(COLUMNS, _rows(rows.sort_values("step"), COLUMNS, limit=NUM_OF_OUTCOME)),
        )
        for outcome, rows in sorted(logged.groupby("outcome"), key=lambda pair: -len(pair[1]))
    ]
    return Folded(
        f"{len(logged)} completions of {len(of_step)} steps",
        Folded("by step", *by_step),
        Folded("by outcome", *by_outcome),
    )


def _rows(completions: pandas.DataFrame, columns: list[str], *, limit: int = 2) -> list[tuple[object, ...]]:
    return spread(list(completions[columns].itertuples(index=False, name=None)), limit)


def end_of_prompt(prompt: str) -> str:
    """Return a prompt's last words, with a sign that there are others before them."""
    is_short = len(prompt) <= LONGEST_TASK
    return prompt if is_short else "… " + re.sub(r"^\S*\s+", "", prompt[-LONGEST_TASK:])
