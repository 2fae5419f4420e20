"""All that is measured of a policy at one time, before and after training, and as JSON."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlnb.evaluation.arena import Arena, ArenaRow, arena_metrics, tictactoe_metrics
from rlnb.evaluation.tictactoe import TicTacToeResult, measure_rows, probabilities_by_state
from rlnb.policy.adapters import AdapterValues
from rlnb.runs import write_text


@dataclass(frozen=True)
class Standing:
    """rows: games by opponent, seat and way to play, those of the averaged weights included. exact:
    tic-tac-toe's measures by way to play ("sampled", "greedy", and both of the averaged weights), empty for
    other games. metrics: what the run's metrics.jsonl gets.
    """

    rows: tuple[ArenaRow, ...]
    exact: Mapping[str, TicTacToeResult]
    metrics: Mapping[str, float]


def take_standing(
    arena: Arena,
    average: AdapterValues,
    *,
    num_games: int,
    progress: Callable[[int, int], None] | None = None,
) -> Standing:
    """Games against every opponent in each way of `evaluation.modes`, and the exact measures.

    Constrained answers are played sampled and greedy, free ones sampled: what a model does when nobody holds
    it to the legal moves.
    """
    asked = arena.params.evaluation
    ways = [(mode, False) for mode in asked.modes]
    if "constrained" in asked.modes:
        ways.append(("constrained", True))
    ways.remove((arena.params.game.acting, False))
    rows = arena.rows_as_trained(average, num_games=num_games)
    metrics, opponents = arena_metrics(rows), arena.opponents()
    for number, (acting, greedy) in enumerate(ways):
        if progress:
            progress(number + 1, len(ways) + 1)
        rows += arena.against(opponents, num_games=num_games, acting=acting, greedy=greedy)
    if progress:
        progress(len(ways) + 1, len(ways) + 1)
    found, exact = exact_measures(arena)
    metrics |= {f"exact/{name}": value for name, value in found.items()}
    with average.at_work(arena.actor.policy):
        found, of_average = exact_measures(arena)
    metrics |= {f"exact/average/{name}": value for name, value in found.items()}
    exact |= {f"average, {way}": result for way, result in of_average.items()}
    return Standing(tuple(rows), exact, metrics)


def exact_measures(arena: Arena) -> tuple[dict[str, float], dict[str, TicTacToeResult]]:
    """What `Arena.exact` finds, and tic-tac-toe's whole results, "sampled" and "greedy", by the same pass."""
    if not arena.can_be_exact or arena.game.short_name != "tic_tac_toe":
        return arena.exact(), {}
    rows = probabilities_by_state(arena.probabilities)
    results = {"sampled": measure_rows(rows, greedy=False), "greedy": measure_rows(rows, greedy=True)}
    return tictactoe_metrics(**results), results


def save_standings(path: str | Path, params: Any, standings: Mapping[str, Standing]) -> None:
    """{"params": ..., "before": {"rows": ..., "exact": ..., "metrics": ...}, ...} as JSON."""
    text = {
        "params": params.model_dump(mode="json"),
        **{
            name: {
                "rows": [asdict(row) for row in one.rows],
                "exact": {way: asdict(found) for way, found in one.exact.items()},
                "metrics": dict(one.metrics),
            }
            for name, one in standings.items()
        },
    }
    write_text(Path(path), json.dumps(text, indent=1) + "\n")
