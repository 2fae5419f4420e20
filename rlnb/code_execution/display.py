"""Code execution in notebooks: the live figure, rewards of hand-written completions, answers that changed."""

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.figure import Figure

from rlnb.code_execution.evaluation import JudgedAnswer
from rlnb.code_execution.reward import Judgement, RewardFunction, compute_reward, judge
from rlnb.code_execution.tasks import Task, Test
from rlnb.display.live import LiveFigure
from rlnb.display.plots import OUTCOME_COLOURS, Row, draw_training
from rlnb.display.tables import Table, as_code
from rlnb.sandbox import Limits, Sandbox


def draw_rewards(rows: Sequence[Row], *, max_steps: int) -> Figure:
    """Draw mean reward and pass rate of each step at the left, and the shares of outcomes at the right."""
    trends = {
        "reward/avg_batch_reward": ("mean reward", "#0072b2"),
        "reward/pass_rate": ("share that passes its tests", "#009e73"),
    }
    heldout = {
        "heldout/known/pass_rate_greedy": ("held out, known: passes, greedy", "#444444", "o"),
        "heldout/new/pass_rate_greedy": ("held out, new: passes, greedy", "#444444", "s"),
    }
    shares = {
        f"status/{name}_share": (name.replace("_", " "), colour) for name, colour in OUTCOME_COLOURS.items()
    }
    titles = ("Reward while training", "What the completions did")
    return draw_training(rows, trends, heldout, shares, max_steps=max_steps, titles=titles)


# The rewards, pass rates and outcomes of a run, redrawn after every step; called with its directory.
LiveRewards = partial(LiveFigure, draw=draw_rewards)


def show_examples(
    bodies: Sequence[str], presets: Mapping[str, Sequence[RewardFunction]], sandbox: Sandbox
) -> Table:
    """Return the table of `show_rewards` for bodies of a function f(n), which shall return 2n."""
    completions = [f"```python\ndef f(n):\n    {body}\n```" for body in bodies]
    task = Task("double", "double", 1, "f", "n", "Return 2n.", Test((2,), 4), (Test((3,), 6), Test((0,), 0)))
    count, limits = len(bodies), Limits(cpu_seconds=1)
    return show_rewards(judge(completions, [task] * count, [""] * count, sandbox, limits=limits), presets)


def show_rewards(judgements: Sequence[Judgement], presets: Mapping[str, Sequence[RewardFunction]]) -> Table:
    """Return what each completion did, and what it earns under each preset, the sum of its functions."""
    return Table(
        ["program", "outcome", "printed", "tests passed", *presets],
        [
            (
                as_code(judgement.code),
                judgement.outcome,
                judgement.execution.stdout[:80] if judgement.execution else "",
                f"{sum(map(bool, judgement.results)) if judgement.ran else 0} of {len(judgement.results)}",
                *(compute_reward(judgement, rewards) for rewards in presets.values()),
            )
            for judgement in judgements
        ],
    )


def show_changed(before: Sequence[JudgedAnswer], after: Sequence[JudgedAnswer], *, limit: int = 8) -> Table:
    """Return the greedy answers whose outcome or correctness changed, improved ones first."""
    first = {answer.task_id: answer for answer in before if answer.greedy}
    pairs = [(first[answer.task_id], answer) for answer in after if answer.greedy and answer.task_id in first]
    changed = [(old, new) for old, new in pairs if format_outcome(old) != format_outcome(new)]
    changed.sort(key=lambda pair: (pair[0].judgement.passed, not pair[1].judgement.passed, pair[1].task_id))
    half = limit // 2
    shown = changed if len(changed) <= limit else [*changed[: limit - half], *changed[-half:]]
    return Table(
        ["task", "split", "before", "program before", "after", "program after"],
        [(new.statement, new.split, *describe_answer(old), *describe_answer(new)) for old, new in shown],
        f"{len(changed)} of {len(pairs)} greedy answers changed in outcome; {len(shown)} shown.",
    )


def format_outcome(answer: JudgedAnswer) -> str:
    return "passes" if answer.judgement.passed else answer.judgement.outcome.replace("_", " ")


def describe_answer(answer: JudgedAnswer) -> tuple[str, str]:
    return format_outcome(answer), as_code(answer.judgement.code or answer.completion, longest=400)
