"""How well a policy writes strategies for 2048, on boards and in a wording that it was never trained on.

Validity and skill are reported apart: what a model learns first is to write anything that plays, and a gain
of that kind says nothing about 2048. Intervals draw boards as well as completions anew.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlnb.evaluation.compare import Estimate, bootstrap_two_way
from rlnb.games.board2048 import KEYS, BoardKind
from rlnb.games.queries2048 import QUERIES, queries_source
from rlnb.machine import rank
from rlnb.params.gpt_oss_2048 import HARD_BOARDS, GptOss2048Params
from rlnb.policy import Policy, generate
from rlnb.rewards.strategy_2048 import NO_STRATEGY_LEVEL, StrategyReferee, StrategyResult, board_seeds
from rlnb.rewards.strategy_play import Rules
from rlnb.runs import write_text
from rlnb.sandbox import Sandbox
from rlnb.tasks.prompts import Prompt
from rlnb.tasks.strategy_prompts import (
    HELD_OUT_WORDING,
    PREFIX,
    StrategyQuestion,
    build_strategy_prompt,
    fenced,
)

# Players to stand beside the model, as strategies like any other; random play is what all are measured from.
PLAYERS: Mapping[str, str] = {
    "corner": "    return next(key for key in {corner!r} if can_move(board, key))",
    "greedy merge": "    return max(legal_moves(board), key=lambda key: merged(board, key))",
}


@dataclass(frozen=True)
class Played:
    """A judged completion. greedy: decoded at temperature 0, and played on more boards."""

    kind: BoardKind
    greedy: bool
    completion: str
    result: StrategyResult


@dataclass(frozen=True)
class StrategyEvaluation:
    """What is asked of a policy at every evaluation: the same boards, prompts and seeds each time."""

    params: GptOss2048Params
    referee: StrategyReferee
    kinds: tuple[BoardKind, ...]

    @classmethod
    def from_params(cls, params: GptOss2048Params, sandbox: Sandbox) -> "StrategyEvaluation":
        """What a notebook's parameters ask for, with a referee of its own: it counts nothing for training."""
        names = HARD_BOARDS if params.evaluation.boards == "hard" else params.board.kinds
        return cls(params, referee_of(params, sandbox), tuple(BoardKind.parse(name) for name in names))

    def __call__(self, policy: Policy, *, progress: Callable[[int, int], None] | None = None) -> list[Played]:
        """Judge sampled and greedy completions for each kind of board; keeps the random state."""
        asked = self.params.evaluation
        played: list[Played] = []
        total = len(self.kinds) * (asked.num_samples + 1)
        for kind in self.kinds:
            prompt = strategy_prompt(self.params, kind, HELD_OUT_WORDING, policy)
            for greedy, count in ((True, 1), (False, asked.num_samples)):
                completions = generate(
                    policy, [prompt.text] * count,
                    max_new_tokens=self.params.training.max_completion_length,
                    temperature=0.0 if greedy else asked.temperature,
                    seed=0, batch_size=asked.batch_size,
                )  # fmt: skip
                played += self.judge(completions, prompt.prefix, kind, greedy=greedy)
                if progress:
                    progress(len(played), total)
        return played

    def judge(
        self, completions: Sequence[str], prefix: str, kind: BoardKind, *, greedy: bool
    ) -> list[Played]:
        """Play completions on the held-out boards; greedy ones on more of them."""
        count, seeds = len(completions), self.seeds_of(kind, greedy=greedy)
        results = self.referee.judge(completions, [prefix] * count, [kind] * count, [seeds] * count)
        return [
            Played(kind, greedy, completion, result)
            for completion, result in zip(completions, results, strict=True)
        ]

    def seeds_of(self, kind: BoardKind, *, greedy: bool) -> list[int]:
        """Of the held-out boards: those of sampled completions, then others for greedy ones."""
        asked = self.params.evaluation
        seeds = board_seeds("held out", kind, num_boards=asked.num_boards + asked.num_greedy_boards)
        return seeds[asked.num_boards :] if greedy else seeds[: asked.num_boards]

    def players(self) -> dict[str, list[Played]]:
        """The players that stand beside the model, on the boards of its greedy completions."""
        keys = KEYS[self.params.board.keys]
        corner = [keys["left"], keys["down"], keys["right"], keys["up"]]
        rules = replace(self.referee.rules, queries=queries_source(keys))  # also where the model has none
        others = StrategyEvaluation(self.params, replace(self.referee, rules=rules, _results={}), self.kinds)
        return {
            name: [
                one
                for kind in self.kinds
                for one in others.judge([fenced(body.format(corner=corner))], "", kind, greedy=True)
            ]
            for name, body in PLAYERS.items()
        }

    def best_of(self, played: Sequence[Played]) -> list[Played]:
        """The best of all sampled completions, played on the boards of greedy ones; none without any.

        All play all kinds of boards, whichever they were asked for. Picked on some boards and measured on
        others: the best of many on the same boards is luck as well.
        """
        prefix = PREFIX if self.params.prompt.prefilled else ""
        completions = list(dict.fromkeys(one.completion for one in played if not one.greedy))
        totals = dict.fromkeys(completions, 0.0)
        for kind in self.kinds:
            for one in self.judge(completions, prefix, kind, greedy=False):
                totals[one.completion] += NO_STRATEGY_LEVEL if one.result.score is None else one.result.score
        best = sorted(totals, key=lambda completion: totals[completion])[-1:]
        return [one for kind in self.kinds for one in self.judge(best, prefix, kind, greedy=True)]


def rules_of(params: GptOss2048Params) -> Rules:
    """How strategies play, as a notebook's parameters ask for."""
    keys = KEYS[params.board.keys]
    return Rules(
        keys=keys,
        four_probability=params.board.four_probability,
        patience=params.board.patience,
        play_on=params.board.play_on,
        move_cpu_seconds=params.sandbox.move_cpu_seconds,
        board_cpu_seconds=params.sandbox.board_cpu_seconds,
        wall_seconds=params.sandbox.timeout_seconds,
        memory_mib=params.sandbox.memory_mib,
        queries=queries_source(keys) if params.prompt.preset == "api" else "",
    )


def referee_of(params: GptOss2048Params, sandbox: Sandbox) -> StrategyReferee:
    """A referee as a notebook's parameters ask for."""
    return StrategyReferee(sandbox, rules_of(params), random_games=params.reward.random_games)


def strategy_prompt(params: GptOss2048Params, kind: BoardKind, wording: int, policy: Policy) -> Prompt:
    """The question for a kind of board, as the model reads it."""
    question = StrategyQuestion(
        params.prompt.preset, kind.size, kind.target, KEYS[params.board.keys], wording, QUERIES
    )
    return build_strategy_prompt(
        question,
        policy.tokenizer,
        prefilled=params.prompt.prefilled,
        reasoning_effort=params.prompt.reasoning_effort,
    )


def score_matrices(
    played: Sequence[Played], *, greedy: bool, honest: bool = False
) -> dict[BoardKind, np.ndarray]:
    """For each kind of board the scores, float (num_completions, num_boards); of honest ones alone if asked.

    Completions with a game that the sandbox failed are left out, and kinds without any completion.
    """
    rows: dict[BoardKind, list[tuple[float, ...]]] = {}
    for one in played:
        is_whole = len(one.result.board_scores) == len(one.result.baselines)
        if one.greedy == greedy and is_whole and (one.result.is_honest or not honest):
            rows.setdefault(one.kind, []).append(one.result.board_scores)
    return {kind: np.asarray(own, dtype=float) for kind, own in rows.items()}


def measure_strategies(played: Sequence[Played]) -> dict[str, Estimate]:
    """What was measured, each with its interval: score, skill (of honest ones), greedy score; no more apart.

    "skill" and "greedy_skill" are missing where nothing was honest.
    """
    matrices = {
        "score": score_matrices(played, greedy=False),
        "skill": score_matrices(played, greedy=False, honest=True),
        "greedy_score": score_matrices(played, greedy=True),
        "greedy_skill": score_matrices(played, greedy=True, honest=True),
    }
    return {name: bootstrap_two_way(list(scores.values())) for name, scores in matrices.items() if scores}


def strategy_shares(played: Sequence[Played]) -> dict[str, float]:
    """Shares and counts of the sampled completions: valid, honest, won, distinct programs."""
    results = [one.result for one in played if not one.greedy]
    total = max(1, len(results))
    return {
        "valid_share": sum(result.is_valid for result in results) / total,
        "honest_share": sum(result.is_honest for result in results) / total,
        "win_share": sum(result.win_share for result in results) / total,
        "distinct_programs": float(len({result.code for result in results if result.code})),
    }


def strategy_heldout_metrics(played: Sequence[Played]) -> dict[str, float]:
    """The means under their metric names, `heldout/strategy/<measure>`."""
    if not played:
        return {}
    means = {name: estimate.value for name, estimate in measure_strategies(played).items()}
    return {f"heldout/strategy/{name}": value for name, value in (means | strategy_shares(played)).items()}


def compare_strategies(before: Sequence[Played], after: Sequence[Played]) -> list[dict[str, Any]]:
    """A row a measure: before, after, and where it is a mean over boards the difference with its interval.

    Of skill only the kinds of boards on which something was honest both times are compared; `boards` names
    the kinds where they are not all.
    """
    rows: list[dict[str, Any]] = []
    if not before or not after:
        return rows
    for name in ("score", "skill", "greedy_score", "greedy_skill"):
        greedy, honest = name.startswith("greedy"), name.endswith("skill")
        old, new = (score_matrices(one, greedy=greedy, honest=honest) for one in (before, after))
        common = [kind for kind in new if kind in old]
        row: dict[str, Any] = {"measure": name}
        for time, scores in (("before", old), ("after", new)):
            shown = [scores[kind] for kind in common or scores]
            row[time] = bootstrap_two_way(shown) if shown else None
        if common:
            row["difference"] = bootstrap_two_way([new[k] for k in common], [old[k] for k in common])
        if len(common or old or new) < len({one.kind for one in before}):
            row["boards"] = ", ".join(map(str, common or old or new))
        rows.append(row)
    first, second = strategy_shares(before), strategy_shares(after)
    rows += [{"measure": name, "before": first[name], "after": second[name]} for name in first]
    return rows


def player_metrics(players: Mapping[str, Sequence[Played]]) -> dict[str, float]:
    """The scores of the players beside the model under their metric names, `heldout/players/<name>`."""
    scores = {name: measure_strategies(own).get("greedy_score") for name, own in players.items()}
    return {
        f"heldout/players/{name.replace(' ', '_')}": score.value
        for name, score in scores.items()
        if score is not None
    }


def save_strategies(
    path: str | Path, params: GptOss2048Params, played: Mapping[str, Sequence[Played]]
) -> None:
    """Write parameters, figures and every completion as JSON, whole or not at all; rank 0 alone does.

    The comparison is that of "before" and "after".
    """
    comparison = compare_strategies(played.get("before", ()), played.get("after", ()))
    results = {
        "params": params.model_dump(mode="json"),
        "comparison": [
            {name: as_list(value) for name, value in row.items() if value is not None} for row in comparison
        ],
        "figures": {
            name: {key: as_list(one) for key, one in measure_strategies(own).items()} | strategy_shares(own)
            for name, own in played.items()
            if own
        },
        "completions": {name: [record_of(one) for one in own] for name, own in played.items()},
    }
    if rank() == 0:
        write_text(Path(path), json.dumps(results, indent=1) + "\n")


def as_list(value: Any) -> Any:
    """An estimate as [value, low, high]; anything else as it is."""
    return [value.value, value.low, value.high] if isinstance(value, Estimate) else value


def record_of(played: Played) -> dict[str, Any]:
    """A judged completion as plain data; `replay` rebuilds each game from its seed and moves."""
    result = played.result
    return {
        "board": str(played.kind),
        "greedy": played.greedy,
        "completion": played.completion,
        "problem": result.problem,
        "score": result.score,
        "board_scores": list(result.board_scores),
        "endings": dict(Counter(game.ending for game in result.games)),
        "games": [[game.seed, game.ending, game.largest, game.moves] for game in result.games],
    }
