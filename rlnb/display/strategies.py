"""Tables of a training on 2048 strategies: rewards by hand, held-out figures, players, suspicions."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlnb.display.tables import Table
from rlnb.evaluation.compare import Estimate
from rlnb.evaluation.strategy_comparison import measure_strategies
from rlnb.rewards.strategy_2048 import PRESETS, StrategyReferee, reason_of

LONGEST_CODE = 600  # characters
MEANINGS = {
    "score": "graded reward, sampled completions",
    "skill": "skill: the same, honest ones alone",
    "greedy_score": "graded reward, greedy completion",
    "greedy_skill": "skill of the greedy completion",
    "valid_share": "a strategy that answers with a key",
    "honest_share": "honest: all games ended by the rules",
    "win_share": "games that reached the target",
    "distinct_programs": "different programs",
}


def show_strategy_rewards(results: Sequence[Any]) -> Table:
    """What each completion did, and what it earns under both presets."""
    rows = []
    for result in results:
        earned = [function(result) for function in PRESETS["requirements"]]
        rows.append(
            (
                (result.code or "(no code)").rstrip()[:LONGEST_CODE] + "\n",
                result.ending.replace("_", " "),
                reason_of(result)[:200],
                f"{sum(value or 0.0 for value in earned):+g}",
                result.score,
            )
        )
    return Table(["strategy", "ended as", "why", "requirements", "graded"], rows)


def show_strategy_comparison(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Before and after, with intervals: `rlnb.evaluation.strategy_comparison.compare_strategies`."""
    return Table(
        ["measure", "before", "after", "difference"],
        [
            (
                meaning_of(row),
                *(value_of(row.get(name)) for name in ("before", "after", "difference")),
            )
            for row in rows
        ],
        caption="Held-out boards and wording; 95% intervals draw completions and boards anew. A gain in the "
        "first row is mostly validity; skill is the second and the fourth.",
    )


def meaning_of(row: Mapping[str, Any]) -> str:
    boards = f", on {row['boards']} alone" if "boards" in row else ""
    return MEANINGS[row["measure"]] + boards


def show_players(players: Mapping[str, Sequence[Any]]) -> Table:
    """The model's programs and other players on the same held-out boards, as score above random play."""
    rows = []
    for name, played in players.items():
        greedy = [one for one in played if one.greedy]
        if greedy:
            games = [game for one in greedy for game in one.result.games]
            wins = sum(game.is_won for game in games)
            score = measure_strategies(greedy).get("greedy_score")
            rows.append(
                (name, value_of(score), f"{wins} of {len(games)}", max((g.largest for g in games), default=0))
            )
    rows.append(("random keys", "+0.000, by definition", "", ""))
    return Table(["player", "score above random play", "games won", "largest tile"], rows)


def show_suspicious(referee: StrategyReferee, *, since: int = 0) -> Table:
    """What the monitor counted in training, with examples: read them before you believe a curve.

    since: the step that this attempt went on from; what was before it is in metrics.jsonl.
    """
    rows = [
        (
            kind,
            count,
            "\n\n".join(code.rstrip()[:LONGEST_CODE] for code in referee.examples.get(kind, [])) + "\n",
        )
        for kind, count in referee.suspicious.most_common()
    ]
    caption = f"Since step {since}. " if since else ""
    caption += "" if rows else "Nothing suspicious was seen."
    return Table(["looks suspicious", "completions", "examples"], rows, caption=caption)


def value_of(value: Any) -> str:
    """An estimate with its interval, a share, or a dash where nothing was measured."""
    if value is None:
        return "–"
    return str(value) if isinstance(value, Estimate) else f"{value:.3f}"
