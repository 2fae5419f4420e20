"""Tables for notebooks: plain HTML that survives in a saved file, with a text form for terminals."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas


class Table:
    """Rows under headers. Jupyter shows it as HTML, a terminal and nbconvert as text.

    A cell that holds a newline is shown as code.
    """

    def __init__(self, headers: Sequence[str], rows: Iterable[Sequence[Any]], *, caption: str = "") -> None:
        self.headers = list(headers)
        self.rows = [[as_text(cell) for cell in row] for row in rows]
        self.caption = caption

    def _repr_html_(self) -> str:
        head = "".join(f"<th style='text-align:left'>{escape(header)}</th>" for header in self.headers)
        body = "".join(f"<tr>{''.join(map(html_cell, row))}</tr>" for row in self.rows)
        caption = f"<caption style='text-align:left'>{escape(self.caption)}</caption>" if self.caption else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def __repr__(self) -> str:
        flat = [[cell.replace("\n", " ⏎ ")[:60] for cell in row] for row in [self.headers, *self.rows]]
        widths = [max(map(len, column)) for column in zip(*flat, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in flat
        ]
        return "\n".join([self.caption, *lines] if self.caption else lines)


def as_text(cell: Any) -> str:
    """Numbers with three decimals, None as a dash."""
    if cell is None:
        return "–"
    text = f"{cell:.3f}" if isinstance(cell, float) else str(cell)
    return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate would end the notebook


def html_cell(cell: str) -> str:
    text = f"<pre style='margin:0'>{escape(cell)}</pre>" if "\n" in cell else escape(cell)
    return f"<td style='text-align:left;vertical-align:top'>{text}</td>"


def show_params(rows: Iterable[Any]) -> Table:
    """The parameters of a run: `rlnb.params.describe(params)`."""
    return Table(["field", "value", "from", "meaning"], [(r.field, r.value, r.source, r.help) for r in rows])


def show_facts(facts: Mapping[str, Any], *, caption: str = "") -> Table:
    """Names and values, for instance of a dataclass (`vars` or `dataclasses.asdict`)."""
    return Table(["", ""], facts.items(), caption=caption)


def show_rewards(judgements: Sequence[Any]) -> Table:
    """What each completion did and what it earns under both presets."""
    return Table(
        ["program", "outcome", "printed", "tests passed", "execution", "tests"],
        [
            (
                judgement.code or "(no code)\n",
                judgement.outcome,
                judgement.execution.stdout[:80] if judgement.execution else "",
                f"{sum(map(bool, judgement.results)) if judgement.ran else 0} of {len(judgement.results)}",
                judgement.reward("execution"),
                judgement.reward("tests"),
            )
            for judgement in judgements
        ],
    )


def show_comparison(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Before and after with the difference and its 95% interval: `rlnb.evaluation.programs.compare`."""
    return Table(
        ["measure", "split", "tasks", "before", "after", "difference", "95% interval"],
        [
            (
                *(
                    row["measure"].replace("_", " "),
                    row["split"],
                    row["num_tasks"],
                    row["before"],
                    row["after"],
                ),
                *(f"{row['difference']:+.3f}", f"{row['low']:+.3f} to {row['high']:+.3f}"),
            )
            for row in rows
        ],
        caption="Means over tasks; interval by bootstrap over tasks, paired.",
    )


def show_changed(before: Sequence[Any], after: Sequence[Any], *, limit: int = 8) -> Table:
    """Greedy answers whose outcome or correctness changed, improved ones first."""
    first = {answer.task.id: answer for answer in before if answer.greedy}
    pairs = [(first[answer.task.id], answer) for answer in after if answer.greedy and answer.task.id in first]
    changed = [(old, new) for old, new in pairs if verdict(old) != verdict(new)]
    changed.sort(key=lambda pair: (pair[0].judgement.passed, not pair[1].judgement.passed, pair[1].task.id))
    half = limit // 2
    shown = changed if len(changed) <= limit else [*changed[: limit - half], *changed[-half:]]
    rows = [
        (new.task.statement, new.split, verdict(old), answer_text(old), verdict(new), answer_text(new))
        for old, new in shown
    ]
    caption = f"{len(changed)} of {len(pairs)} greedy answers changed in outcome; {len(shown)} shown."
    return Table(
        ["task", "split", "before", "program before", "after", "program after"], rows, caption=caption
    )


def verdict(answer: Any) -> str:
    return "passes" if answer.judgement.passed else answer.judgement.outcome.replace("_", " ")


def answer_text(answer: Any) -> str:
    return (answer.judgement.code or answer.completion).rstrip()[:400] + "\n"


def show_samples(output_dir: str | Path, *, rewards: Sequence[str] = ("code",), limit: int = 8) -> Table:
    """Completions of the last training step that was logged, as TRL wrote them, best rewards first.

    rewards: names of the reward functions, whose sum is shown.
    """
    files = sorted(Path(output_dir).glob("checkpoints/completions/completions_*.parquet"))
    if not files:
        return Table(
            ["step", "completion", "outcome", "reward", "advantage"],
            [],
            caption="No completions were logged.",
        )
    logged = pandas.read_parquet(files[-1])
    logged["earned"] = logged[list(rewards)].sum(axis=1)
    rows = logged.sort_values("earned", ascending=False).to_dict("records")
    picked = rows if len(rows) <= limit else [rows[i * (len(rows) - 1) // (limit - 1)] for i in range(limit)]
    return Table(
        ["step", "task", "completion", "outcome", "reward", "advantage"],
        [
            (
                row["step"],
                row["prompt"][-160:],
                row["completion"] + "\n",
                row["outcome"],
                row["earned"],
                row["advantage"],
            )
            for row in picked
        ],
        caption=f"{len(picked)} of {len(rows)} completions of step {rows[0]['step']}",
    )
