"""Code execution in notebooks: the live figure, rewards of hand-written completions, answers that changed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from rlnb.code_execution.evaluation import JudgedAnswer
from rlnb.code_execution.reward import Judgement, RewardFunction
from rlnb.display.plots import (
    OUTCOME_COLOURS,
    LiveFigure,
    Row,
    draw_heldout,
    draw_shares,
    draw_trend,
    put_legend,
)
from rlnb.display.tables import Table


class LiveRewards(LiveFigure):
    """The rewards, pass rates and outcomes of a run."""

    def __init__(self, output_dir: str | Path) -> None:
        super().__init__(output_dir, draw_rewards)


def draw_rewards(rows: Sequence[Row], *, max_steps: int) -> Figure:
    """Draw mean reward and pass rate of each step at the left, and the shares of outcomes at the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    draw_trend(left, rows, "reward/avg_batch_reward", label="mean reward", color="#1f77b4")
    draw_trend(left, rows, "reward/pass_rate", label="share that passes its tests", color="#2a7f3f")
    for split, marker in (("known", "o"), ("new", "s")):
        name, label = f"heldout/{split}/pass_rate_greedy", f"held out, {split} families, greedy"
        draw_heldout(left, rows, name, marker, label=label, color="#444444")
    left.set(xlabel="step", xlim=(-0.02 * max_steps, 1.02 * max_steps), title="Reward while training")
    left.grid(alpha=0.3)
    put_legend(left, 2)
    shares = {
        f"status/{outcome}_share": (outcome.replace("_", " "), colour)
        for outcome, colour in OUTCOME_COLOURS.items()
    }
    draw_shares(right, rows, shares, max_steps=max_steps, title="What the completions did")
    return figure


def show_rewards(judgements: Sequence[Judgement], rewards: Mapping[str, RewardFunction]) -> Table:
    """Return what each completion did, and what it earns under each of `rewards`, {preset: function}."""
    return Table(
        ["program", "outcome", "printed", "tests passed", *rewards],
        [
            (
                judgement.code or "(no code)\n",
                judgement.outcome,
                judgement.execution.stdout[:80] if judgement.execution else "",
                f"{sum(map(bool, judgement.results)) if judgement.ran else 0} of {len(judgement.results)}",
                *(reward(judgement) for reward in rewards.values()),
            )
            for judgement in judgements
        ],
    )


def show_changed(before: Sequence[JudgedAnswer], after: Sequence[JudgedAnswer], *, limit: int = 8) -> Table:
    """Return the greedy answers whose outcome or correctness changed, improved ones first."""
    first = {answer.task.id: answer for answer in before if answer.greedy}
    pairs = [(first[answer.task.id], answer) for answer in after if answer.greedy and answer.task.id in first]
    changed = [(old, new) for old, new in pairs if format_outcome(old) != format_outcome(new)]
    changed.sort(key=lambda pair: (pair[0].judgement.passed, not pair[1].judgement.passed, pair[1].task.id))
    half = limit // 2
    shown = changed if len(changed) <= limit else [*changed[: limit - half], *changed[-half:]]
    rows = []
    for old, new in shown:
        texts = (format_outcome(old), program_text(old), format_outcome(new), program_text(new))
        rows.append((new.task.statement, new.split, *texts))
    headers = ["task", "split", "before", "program before", "after", "program after"]
    caption = f"{len(changed)} of {len(pairs)} greedy answers changed in outcome; {len(shown)} shown."
    return Table(headers, rows, caption)


def format_outcome(answer: JudgedAnswer) -> str:
    return "passes" if answer.judgement.passed else answer.judgement.outcome.replace("_", " ")


def program_text(answer: JudgedAnswer) -> str:
    return (answer.judgement.code or answer.completion).rstrip()[:400] + "\n"
