"""The evaluation of a policy that writes 2048 strategies, on boards and a wording never used in training.

Validity and skill are reported separately: a model first learns to write anything that plays, and such a gain
says nothing about 2048.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from rlnb.evaluations import measure_once
from rlnb.game_2048.board import BoardKind
from rlnb.game_2048.board_secret import BoardSecret
from rlnb.game_2048.params import HARD_BOARDS, GptOss2048Params
from rlnb.game_2048.prompts import HELD_OUT_WORDING, build_strategy_prompt, fence_strategy
from rlnb.game_2048.queries import QUERIES_SOURCE
from rlnb.game_2048.reward import StrategyReferee, StrategyResult, compute_strategy_shares
from rlnb.policy import Completion, Policy, Progress, generate
from rlnb.results import BoardScores
from rlnb.run.health import AnswerEnd, describe_ends
from rlnb.sandbox import Sandbox
from rlnb.source_code.extraction import ends_of_answers
from rlnb.statistics import Estimate, bootstrap_two_way

# Other players, written as strategies; random play is what all scores are measured from.
PLAYERS: Mapping[str, str] = {
    "corner": "    return next(key for key in ['a', 'u', 'i', 'é'] if can_move(board, key))",
    "greedy merge": "    return max(legal_moves(board), key=lambda key: merged(board, key))",
}

NUM_BOARDS, NUM_GREEDY_BOARDS = 16, 100  # held-out games of a sampled completion, and of a greedy one
SCORE_MEASURES = ("score", "skill", "greedy_score", "greedy_skill")  # skill: of honest completions only


@dataclass(frozen=True)
class JudgedCompletion:
    """A completion with its result. greedy: decoded at temperature 0, and played on more boards.

    is_cut: by the limit of tokens.
    """

    kind: BoardKind
    greedy: bool
    completion: str
    is_cut: bool
    result: StrategyResult


@dataclass(frozen=True)
class StrategyEvaluation:
    """An evaluation with the same boards, prompts and seeds each time, and a referee of its own."""

    params: GptOss2048Params
    referee: StrategyReferee
    kinds: tuple[BoardKind, ...]
    secret: BoardSecret

    @classmethod
    def from_params(cls, params: GptOss2048Params, sandbox: Sandbox) -> "StrategyEvaluation":
        """Return the evaluation of a run. Raises ParamsError as `BoardSecret.of_run`."""
        secret = BoardSecret.of_run(params)
        names = HARD_BOARDS if params.evaluation.boards == "hard" else params.board.kinds
        kinds = tuple(BoardKind.parse(name) for name in names)
        return cls(params, StrategyReferee.from_params(params, sandbox), kinds, secret)

    def __call__(self, policy: Policy, *, progress: Progress | None = None) -> list[JudgedCompletion]:
        """Judge sampled and greedy completions for each kind of board; keeps the random state."""
        evaluation = self.params.evaluation
        judged: list[JudgedCompletion] = []
        total = len(self.kinds) * (evaluation.num_samples + 1)
        for kind in self.kinds:
            prompt = build_strategy_prompt(self.params, kind, HELD_OUT_WORDING, policy.chat)
            for greedy, count in ((True, 1), (False, evaluation.num_samples)):
                completions = generate(
                    policy,
                    [prompt.text] * count,
                    max_new_tokens=self.params.training.max_completion_length,
                    temperature=0.0 if greedy else evaluation.temperature,
                    seed=0,
                    batch_size=evaluation.batch_size,
                    is_complete=ends_of_answers([prompt.prefix] * count, ["strategy"] * count),
                )
                judged += self.judge(completions, prompt.prefix, kind, greedy=greedy)
                if progress:
                    progress(len(judged), total)
        return judged

    def measure(
        self, policy: Policy, label: str, *, progress: Progress | None = None
    ) -> list[JudgedCompletion]:
        """Judge a policy in training, and keep the result in strategies_<label>.json; see `measure_once`.

        label: "before", "step-20" or "after". Nothing where `evaluation.enabled` is false.
        """
        if not self.params.evaluation.enabled:
            return []
        sections = {"model", "board", "prompt", "sandbox", "evaluation"}
        return measure_once(
            Path(self.params.output_dir, f"strategies_{label}.json"),
            lambda: self(policy, progress=progress),
            kind=list[JudgedCompletion],
            policy=policy,
            params=self.params,
            settings={
                **self.params.model_dump(mode="json", include=sections),
                "max_completion_length": self.params.training.max_completion_length,
                "board_fingerprint": self.secret.fingerprint,
                "isolation": self.referee.sandbox.level,
            },
            warn=lambda judged: describe_ends(
                [AnswerEnd(each.result.ending, each.result.why, each.is_cut) for each in judged]
            ),
        )

    def judge(
        self, completions: Sequence[Completion], prefix: str, kind: BoardKind, *, greedy: bool
    ) -> list[JudgedCompletion]:
        """Play completions on the held-out boards; greedy ones on more of them."""
        count, seeds = len(completions), self.board_seeds(kind, greedy=greedy)
        texts = [completion.text for completion in completions]
        results = self.referee.judge(texts, [prefix] * count, [kind] * count, [seeds] * count)
        return [
            JudgedCompletion(kind, greedy, *completion, result)
            for completion, result in zip(completions, results, strict=True)
        ]

    def board_seeds(self, kind: BoardKind, *, greedy: bool) -> list[int]:
        """Return the seeds of the held-out boards, which differ for sampled and greedy completions."""
        seeds = self.secret.seeds("held out", kind, num_boards=NUM_BOARDS + NUM_GREEDY_BOARDS)
        return seeds[NUM_BOARDS:] if greedy else seeds[:NUM_BOARDS]

    def play_others(self) -> dict[str, list[JudgedCompletion]]:
        """Return the other players' games on the boards of greedy completions."""
        rules = replace(self.referee.rules, queries=QUERIES_SOURCE)  # whatever the model has
        evaluation = replace(self, referee=replace(self.referee, rules=rules))
        answers = {name: [Completion(fence_strategy(body), False)] for name, body in PLAYERS.items()}
        return {
            name: [game for kind in self.kinds for game in evaluation.judge(answer, "", kind, greedy=True)]
            for name, answer in answers.items()
        }


def score_boards(judged: Sequence[JudgedCompletion]) -> BoardScores:
    """Return the scores that each of SCORE_MEASURES is a mean of.

    Completions with a game in which the sandbox failed are left out.
    """
    scores: dict[str, dict[str, list[tuple[float, ...]]]] = {measure: {} for measure in SCORE_MEASURES}
    for completion in judged:
        result = completion.result
        if len(result.board_scores) == len(result.baselines):
            prefix = "greedy_" if completion.greedy else ""
            for measure in ("score", "skill") if result.is_honest else ("score",):
                by_kind = scores[prefix + measure]
                by_kind.setdefault(str(completion.kind), []).append(result.board_scores)
    return scores


def measure_strategies(judged: Sequence[JudgedCompletion]) -> dict[str, Estimate]:
    """Return SCORE_MEASURES with intervals over boards and completions, without those of no completion."""
    scores = score_boards(judged)
    return {name: bootstrap_two_way(list(kinds.values())) for name, kinds in scores.items() if kinds}


def collect_figures(judged: Sequence[JudgedCompletion]) -> Mapping[str, Estimate | float]:
    """Return SCORE_MEASURES, the share that was cut, and those of the sampled completions, by name."""
    if not judged:
        return {}
    sampled = [completion.result for completion in judged if not completion.greedy]
    shares = compute_strategy_shares(sampled) if sampled else {}
    return {**measure_strategies(judged), **shares, "cut_share": fmean(each.is_cut for each in judged)}


def strategy_heldout_metrics(judged: Sequence[JudgedCompletion]) -> dict[str, float]:
    """Return the measures under their metric names, `heldout/strategy/<measure>`."""
    return {
        f"heldout/strategy/{name}": value.value if isinstance(value, Estimate) else value
        for name, value in collect_figures(judged).items()
    }
