"""Every branch of the game's reward, with a scripted opponent and the real sandbox."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_opponent import ScriptedOpponent

from rlnb.code_game.opponents import ChoosingOpponent, PredictionVerdict
from rlnb.code_game.params import GrpoCodeGameParams
from rlnb.code_game.programs import strip_comments
from rlnb.code_game.reward import (
    CodeGameReward,
    GameReferee,
    GameRound,
    PooledProgram,
    ProgramPool,
    judge_rounds,
)
from rlnb.errors import SandboxUnavailable
from rlnb.notebook import load_cell
from rlnb.run.metrics import INVALID_KINDS, describe
from rlnb.sandbox import Execution, Limits, Rerun, Reruns, Sandbox

PRESETS: dict[str, Any] = load_cell("grpo_code_game", "reward", {"params": GrpoCodeGameParams()})["presets"]
REQUIRED = PRESETS["required"]
LIMITS = Limits(cpu_seconds=1, memory_mib=200, output_kib=64)


@pytest.fixture(scope="module")
def referee():
    with Reruns(LIMITS, num_interpreters=3, num_workers=2) as reruns:
        yield GameReferee(reruns, lambda code: len(code.split()), max_output_chars=20, max_code_tokens=30)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(LIMITS, num_workers=2) as opened:
        yield opened


@dataclass
class Recording:
    """An opponent that predicts "42" and remembers what it was asked."""

    logprob: float = math.nan
    num_tokens: int = 0
    calls: list[tuple[list[str], list[str]]] = field(default_factory=list)

    def judge(self, programs: Sequence[str], outputs: Sequence[str]) -> list[PredictionVerdict]:
        self.calls.append((list(programs), list(outputs)))
        return [PredictionVerdict(output == "42", self.logprob, self.num_tokens) for output in outputs]


def fenced(code: str) -> str:
    return f"```python\n{code}\n```"


def played(referee: GameReferee, *codes: str, opponent: Any = None) -> list[GameRound]:
    rounds = referee.play([fenced(code) for code in codes], [""] * len(codes))
    return judge_rounds(rounds, opponent or Recording())


def play(reward: CodeGameReward, completions: list[str], **options: Any) -> tuple[list[Any], dict, dict]:
    """Rewards, metrics and extra columns of one call as TRL makes it."""
    metrics: dict[str, float] = {}
    extra: dict[str, list] = {}
    count = len(completions)
    columns = {"prefix": [""] * count, "role": ["author"] * count} | options
    rewards = reward(
        prompts=[""] * count, completions=completions, completion_ids=[[]] * count,
        log_metric=metrics.__setitem__, log_extra=extra.__setitem__, **columns,
    )  # fmt: skip
    return rewards, metrics, extra


INVALID = {
    "no_code": ("I would rather not.", "there is no program in the answer"),
    "syntax_error": (fenced("print(1"), "is not Python"),
    "long_code": (fenced("x = 1\n" * 11 + "print(x)"), "has 34 tokens, more than the 30 allowed"),
    "runtime_error": (fenced("print(1)\n1 / 0"), "ZeroDivisionError"),
    "timeout": (fenced("while True: pass"), ""),
    "memory_exceeded": (fenced("print(len('x' * 10 ** 10))"), ""),
    "output_exceeded": (fenced("while True: print('x' * 1000)"), ""),
    "silent": (fenced("x = 1\nprint(' \\n')"), "prints nothing"),
    "long_output": (fenced("print('x' * 21)"), "prints 21 characters, more than the 20 allowed"),
    "unreadable": (fenced("print('\\x1b[1m')"), "prints what an answer cannot hold"),
    "not_deterministic": (fenced("print({'ab', 'cd', 'ef', 'gh'})"), "in one interpreter and"),
}


@pytest.mark.parametrize("kind", INVALID)
def test_a_program_without_a_round_earns_minus_one_and_says_why(referee, kind):
    (game,) = judge_rounds(referee.play([INVALID[kind][0]], [""]), Recording())
    assert (game.kind, game.is_valid, game.is_win) == (kind, False, False)
    assert INVALID[kind][1] in game.message
    assert {preset: reward(game) for preset, reward in PRESETS.items()} == dict.fromkeys(PRESETS, -1.0)


def test_what_reads_as_python_but_cannot_be_compiled_is_a_syntax_error(referee):
    assert set(INVALID_KINDS) - set(INVALID) == {"killed"}
    (game,) = played(referee, "return 3")
    assert (game.kind, PRESETS["validity"](game)) == ("syntax_error", -1.0)


def test_a_use_that_is_forbidden_is_told_and_not_run(referee):
    (game,) = played(referee, "import time\nprint(time.time())")
    assert game.kind == "not_deterministic"
    assert game.message.startswith("Line 1 imports time, which is none of __future__, abc, ")


def test_the_opponent_being_right_or_wrong_decides_the_required_reward(referee):
    right, wrong = played(referee, "print(6 * 7)", "print(6 * 8)")
    assert [(game.kind, game.output) for game in (right, wrong)] == [("valid", "42"), ("valid", "48")]
    assert [game.is_win for game in (right, wrong)] == [False, True]
    for preset in ("required", "choice"):
        assert [PRESETS[preset](game) for game in (right, wrong)] == [-1.0, 1.0]
    assert [PRESETS["validity"](game) for game in (right, wrong)] == [1.0, 1.0]


def test_graded_is_one_minus_twice_the_mean_probability_of_a_token():
    def graded(logprob: float, num_tokens: int) -> float | None:
        verdict = PredictionVerdict(True, logprob, num_tokens)
        return PRESETS["graded"](GameRound("x", "valid", verdict=verdict))

    assert graded(0.0, 3) == -1.0  # certain
    assert graded(math.log(0.25), 2) == pytest.approx(0.0)  # a half each
    assert graded(3 * math.log(0.1), 3) == pytest.approx(0.8)
    assert graded(-1000.0, 2) == pytest.approx(1.0)


@dataclass
class BrokenReruns:
    """Interpreters that the sandbox could not start for the programs of this set."""

    broken: set[str]

    def run_many(self, programs: Sequence[str]) -> list[Rerun]:
        ok, broken = ("ok", "7\n", "", ""), ("sandbox_error", "", "", "no worker")
        ends = [broken if program in self.broken else ok for program in programs]
        return [Rerun(Execution(*end, 0.0, 0.0, ""), "") for end in ends]


def test_a_failure_of_the_sandbox_is_nobodys_fault_and_many_stop_the_run():
    referee = GameReferee(BrokenReruns({"print(1)"}), len)
    reward = CodeGameReward(referee, ScriptedOpponent({}), reward=REQUIRED)
    rewards, metrics, extra = play(reward, [fenced("print(1)"), fenced("print(2)"), "none"])
    assert rewards == [None, 1.0, -1.0]
    assert extra["outcome"] == ["sandbox_error", "valid", "no_code"]
    assert (metrics["game/valid_share"], metrics["game/win_share"]) == (0.5, 0.5)
    broken = {f"print({n})" for n in range(3)}
    reward = CodeGameReward(GameReferee(BrokenReruns(broken), len), ScriptedOpponent({}), reward=REQUIRED)
    with pytest.raises(
        SandboxUnavailable, match=r"^sandbox: 3 of 4 programs could not be run \(no worker\); "
    ):
        play(reward, [fenced(f"print({n})") for n in range(4)])


def test_the_opponent_reads_no_comment_and_the_program_that_it_reads_is_the_one_that_ran(referee):
    code = 'def f(n):\n    """Returns 42."""\n    return n * 7  # Output: 42\nprint(f(6) + 1)  # 43\n"""42"""'
    opponent = Recording()
    (game,) = played(referee, code, opponent=opponent)
    assert opponent.calls == [(["def f(n):\n    return n * 7\nprint(f(6) + 1)"], ["43"])]
    assert game.shown == opponent.calls[0][0][0] == strip_comments(code)
    assert game.code.strip() == code


def test_a_program_that_reads_its_docstring_is_refused_because_the_opponent_is_not_shown_it(referee):
    (game,) = played(referee, 'def f():\n    """The answer is 42."""\nprint(f.__doc__)')
    assert (game.kind, game.shown) == ("not_deterministic", "def f():\n    pass\nprint(f.__doc__)")
    assert game.message.startswith("Line 3 uses __doc__, which tells of")


def test_the_answer_goes_on_from_the_prefix_of_the_prompt(referee):
    (game,) = referee.play(["n * 2)\n```\nThat is all."], ["```python\nn = 21\nprint("])
    assert (game.kind, game.shown, game.output) == ("valid", "n = 21\nprint(n * 2)", "42")


def test_the_tokens_of_comments_count(referee):
    (game,) = played(referee, "# " + "word " * 40 + "\nprint(1)")
    assert game.kind == "long_code"


def test_all_valid_rounds_are_judged_in_one_call_and_the_others_not_at_all(referee):
    opponent = Recording()
    played(referee, "print(1)", "1 / 0", "print(1)  # again", "x = 2", "print(3)", opponent=opponent)
    assert opponent.calls == [(["print(1)", "print(1)", "print(3)"], ["1", "1", "3"])]


def test_a_batch_without_a_valid_program_asks_no_opponent(referee):
    opponent = Recording()
    reward = CodeGameReward(referee, opponent, reward=REQUIRED)
    rewards, metrics, _ = play(reward, ["no", fenced("1 / 0")])
    assert (rewards, opponent.calls) == ([-1.0, -1.0], [])
    of_valid = "opponent_right", "token_probability", "trivial_share", "echo_share", "distinct_shapes"
    assert all(math.isnan(metrics[f"game/{name}"]) for name in (*of_valid, "output_characters"))
    assert (metrics["game/win_share"], metrics["game/valid_share"]) == (0.0, 0.0)


def test_the_whole_table_of_metrics_of_a_batch(referee):
    opponent = Recording(logprob=2 * math.log(0.25), num_tokens=2)
    reward = CodeGameReward(referee, opponent, reward=REQUIRED)
    completions = [
        fenced("print(42)"),  # trivial, an echo, predicted
        fenced("print(6 * 7)  # Output: 41"),  # predicted; the comment is not seen
        fenced("print(6 * 8)"),  # of the same shape, a win
        fenced("for k in range(2): print(k)"),  # a win
        "no code",
        fenced("print(1 / 0)"),
        fenced("x = 1"),
        fenced("x ="),
    ]
    rewards, metrics, extra = play(reward, completions)
    assert rewards == [-1.0, -1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0]
    seconds = {name: metrics.pop(name) for name in ("time/reward_seconds", "time/opponent_seconds")}
    assert 0 <= seconds["time/opponent_seconds"] <= seconds["time/reward_seconds"]
    shares = dict.fromkeys(INVALID_KINDS, 0.0) | dict.fromkeys(
        ("no_code", "runtime_error", "silent", "syntax_error"), 1 / 8
    )
    assert metrics == pytest.approx({
        "reward/avg_batch_reward": -4 / 8,
        "reward/successful_predictions_count": 2,
        "game/win_share": 2 / 8,
        "game/valid_share": 4 / 8,
        "game/opponent_right": 2 / 4,
        "game/token_probability": 0.25,
        "game/trivial_share": 1 / 4,
        "game/echo_share": 1 / 4,
        "game/distinct_shapes": 3 / 4,
        "game/output_characters": (2 + 2 + 2 + 3) / 4,
        **{f"game/{kind}_share": share for kind, share in shares.items()},
    })  # fmt: skip
    assert all(describe(name) for name in [*metrics, *seconds])
    assert extra["outcome"] == ["valid"] * 4 + ["no_code", "runtime_error", "silent", "syntax_error"]
    assert extra["output"] == ["42", "42", "48", "0\n1", "", "", "", ""]


def test_conversational_completions_are_read_and_trls_other_columns_ignored(referee):
    reward = CodeGameReward(referee, Recording(), reward=REQUIRED)
    chat = [{"role": "assistant", "content": fenced("print(5)")}]
    assert reward(completions=[chat], prefix=[""], role=["author"], place=[0], trainer_state=None) == [1.0]


# The other form of the game: a choice among the outputs of make_mutants.


@dataclass
class FirstChooser:
    """Picks the first option, and remembers all of them."""

    calls: list[tuple[list[str], list[list[str]]]] = field(default_factory=list)

    def choose(self, programs: Sequence[str], options: Sequence[Sequence[str]]) -> list[int]:
        self.calls.append((list(programs), [list(texts) for texts in options]))
        return [0] * len(programs)


def test_the_options_hold_the_true_output_once_and_others_of_mutants_in_an_order_that_tells_nothing(sandbox):
    chooser = FirstChooser()
    opponent = ChoosingOpponent(chooser, sandbox, num_choices=4)
    programs, outputs = ["print(6 * 8 + 5)", "print('abc'.upper())"], ["53", "ABC"]
    verdicts = opponent.judge(programs, outputs)
    ((chosen_programs, options),) = chooser.calls
    assert chosen_programs == programs
    for texts, output, verdict in zip(options, outputs, verdicts, strict=True):
        assert texts.count(output) == 1 and len(set(texts)) == len(texts) == 4
        assert texts == sorted(texts)
        assert verdict.is_right == (texts[0] == output)
        assert math.isnan(verdict.token_probability)
    assert opponent.collect_options(programs, outputs) == options


def test_options_are_as_short_and_readable_as_outputs_must_be(sandbox):
    opponent = ChoosingOpponent(FirstChooser(), sandbox, num_choices=8, max_output_chars=3)
    (texts,) = opponent.collect_options(["print(7 * 11)"], ["77"])
    assert len(texts) > 2 and all(0 < len(text) <= 3 for text in texts)


def test_a_program_whose_output_no_mutant_changes_is_predicted(sandbox):
    chooser = FirstChooser()
    opponent = ChoosingOpponent(chooser, sandbox)
    programs, outputs = ["print([])", "print(6 * 8)"], ["[]", "48"]
    first, _ = opponent.judge(programs, outputs)
    assert first.is_right and first.num_options == 1
    assert chooser.calls[0][0] == ["print(6 * 8)"]


# The other side: predicting what the policy wrote before.


def two_sided(referee: GameReferee, *known: PooledProgram) -> CodeGameReward:
    return CodeGameReward(referee, Recording(), reward=REQUIRED, pool=ProgramPool(list(known)))


def test_a_predictor_earns_what_the_author_loses(referee):
    reward = two_sided(referee, PooledProgram("print(6 * 7)", "42", 0))
    rewards, metrics, extra = play(
        reward, ["42\n```", "41\n```", "42", "print(6 * 7)\n```"],
        role=["predictor", "predictor", "predictor", "author"],
        prefix=["print(6 * 7)"] * 3 + ["```python\n"],
    )  # fmt: skip
    assert rewards == [1.0, -1.0, 1.0, -1.0]
    assert metrics["game/predictor_right"] == pytest.approx(2 / 3)
    assert metrics["game/valid_share"] == 1.0  # of the authors' programs alone
    assert extra["outcome"] == ["predictor"] * 3 + ["valid"]


def test_valid_programs_are_kept_with_the_step_that_wrote_them(referee):
    reward = two_sided(referee)
    completions = [fenced("print(1)  # one"), fenced("print(1)"), fenced("1 / 0"), fenced("print(2)")]
    play(reward, completions, trainer_state=SimpleNamespace(global_step=7))
    play(reward, completions[:1], trainer_state=SimpleNamespace(global_step=8))
    assert reward.pool.programs == [PooledProgram("print(1)", "1", 7), PooledProgram("print(2)", "2", 7)]
