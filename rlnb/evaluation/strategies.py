"""How well a policy writes strategies for 2048, on boards and in a wording that it was never trained on.

Validity and skill are reported apart: what a model learns first is to write anything that plays, and a gain
of that kind says nothing about 2048. Intervals draw boards as well as completions anew.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlnb.evaluation.strategy_comparison import (
    Played,
    as_list,
    compare_strategies,
    measure_strategies,
    record_of,
    strategy_shares,
)
from rlnb.games.board2048 import KEYS, BoardKind
from rlnb.games.queries2048 import QUERIES, queries_source
from rlnb.machine import rank
from rlnb.params.gpt_oss_2048 import HARD_BOARDS, GptOss2048Params
from rlnb.policy import Policy, generate
from rlnb.rewards.board_secret import BoardSecret
from rlnb.rewards.strategy_2048 import NO_STRATEGY_LEVEL, StrategyReferee
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
class StrategyEvaluation:
    """What is asked of a policy at every evaluation: the same boards, prompts and seeds each time."""

    params: GptOss2048Params
    referee: StrategyReferee
    kinds: tuple[BoardKind, ...]
    secret: BoardSecret

    @classmethod
    def from_params(cls, params: GptOss2048Params, sandbox: Sandbox) -> "StrategyEvaluation":
        """Return what a notebook's parameters ask for, on boards of the run in `params.output_dir`.

        It has a referee of its own, which counts nothing for training. Raises ParamsError as
        `BoardSecret.of_run`, which draws the run's secret where there is none yet.
        """
        secret = BoardSecret.of_run(params)
        names = HARD_BOARDS if params.evaluation.boards == "hard" else params.board.kinds
        kinds = tuple(BoardKind.parse(name) for name in names)
        return cls(params, referee_of(params, sandbox), kinds, secret)

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
        """Return seeds of the held-out boards: those of sampled completions, or others for greedy ones."""
        asked = self.params.evaluation
        seeds = self.secret.seeds("held out", kind, num_boards=asked.num_boards + asked.num_greedy_boards)
        return seeds[asked.num_boards :] if greedy else seeds[: asked.num_boards]

    def players(self) -> dict[str, list[Played]]:
        """The players that stand beside the model, on the boards of its greedy completions."""
        keys = KEYS[self.params.board.keys]
        corner = [keys["left"], keys["down"], keys["right"], keys["up"]]
        rules = replace(self.referee.rules, queries=queries_source(keys))  # also where the model has none
        others = replace(self, referee=replace(self.referee, rules=rules, _results={}))
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


def strategy_heldout_metrics(played: Sequence[Played]) -> dict[str, float]:
    """The means under their metric names, `heldout/strategy/<measure>`."""
    if not played:
        return {}
    means = {name: estimate.value for name, estimate in measure_strategies(played).items()}
    return {f"heldout/strategy/{name}": value for name, value in (means | strategy_shares(played)).items()}


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

    The comparison is that of "before" and "after". "board_fingerprint" is `BoardSecret.fingerprint`:
    figures of another run with the same one are of the same boards.
    """
    comparison = compare_strategies(played.get("before", ()), played.get("after", ()))
    results = {
        "params": params.model_dump(mode="json"),
        "board_fingerprint": BoardSecret.of_run(params).fingerprint,
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
