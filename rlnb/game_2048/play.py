"""Games of 2048 that a strategy plays: the strategy runs in the sandbox, the game stays in this process.

Board, random state and score never enter the strategy's process. It gets a fresh copy of the board at each
call and answers with a key, so nothing that it does to its copy, or to its process, moves a tile.
"""

import hashlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

from rlnb.game_2048.board import DIRECTIONS, BoardKind, GameBoard, parse_key
from rlnb.game_2048.params import GptOss2048Params
from rlnb.game_2048.queries import QUERIES_SOURCE
from rlnb.game_2048.strategies import FUNCTION, FUTURE
from rlnb.sandbox import Limits, LoadedProgram, Sandbox
from rlnb.sandbox.calls import Call, Clock
from rlnb.sandbox.executions import Execution, describe

Job = tuple[str, BoardKind, int]  # a strategy's code, the board, its seed
Ending = Literal["success", "failed", "stuck", "illegal", "exception", "timeout", "sandbox_error"]
RANDOM_GAMES = 8  # games of random play from each board, from which scores are measured
LONGEST_ERROR = 300  # characters
OUTPUT_KIB = 4096  # of a whole game: what is printed counts for nothing
CACHED_BOARDS = 2**12  # whose random play is remembered


@dataclass(frozen=True)
class BoardRules:
    """The rules by which strategies play.

    play_on: see `GameBoard`. move_cpu_seconds, board_cpu_seconds: CPU time of one move, and of one game
    including the loading of the program. wall_seconds: wall time of one game. memory_mib: of the program.
    queries: source put in front of it.
    """

    play_on: bool = False
    move_cpu_seconds: float = 0.5
    board_cpu_seconds: float = 4.0
    wall_seconds: float = 5.0
    memory_mib: int = 256
    queries: str = ""

    @classmethod
    def from_params(cls, params: GptOss2048Params) -> "BoardRules":
        """Return the rules of a run; the published rewards have one limit of time."""
        sandbox, is_published = params.sandbox, params.reward.preset == "requirements"
        board_seconds = sandbox.timeout_seconds if is_published else sandbox.board_cpu_seconds
        return cls(
            play_on=params.board.play_on,
            move_cpu_seconds=board_seconds if is_published else board_seconds / 8,
            board_cpu_seconds=board_seconds,
            wall_seconds=sandbox.timeout_seconds,
            memory_mib=sandbox.memory_mib,
            queries=QUERIES_SOURCE if params.prompt.preset == "api" else "",
        )

    def make_program(self, code: str, seed: int) -> str:
        """Return a strategy's program: its `random` is seeded, so the same code plays the same game again."""
        strategy_seed = make_public_seed("strategy", seed)
        future = FUTURE if code.startswith(FUTURE) else ""  # which has to be the first line
        code = code.removeprefix(FUTURE)
        return f"{future}import random\nrandom.seed({strategy_seed})\n{self.queries}\n\n{code}\n"


@dataclass(frozen=True)
class StrategyGame:
    """One game of one strategy. moves: letters as in `GameBoard.moves`, which play the same game again.

    ending: "success", "failed" or "stuck" as in `GameBoard.state`; "illegal" for an answer that is not a key,
    "exception", "timeout". error: the reason in a line, untrusted. seconds: wall time. was_compiled: the
    program is one for Python's compiler. was_loaded: it ran up to its first board.
    """

    kind: BoardKind
    seed: int
    ending: Ending
    largest: int
    score: int
    moves: str
    error: str
    seconds: float
    was_loaded: bool = True
    was_compiled: bool = True

    @property
    def is_honest(self) -> bool:
        """The game ended by the rules."""
        return self.ending in ("success", "failed")

    @property
    def is_won(self) -> bool:
        """The target was reached, whatever ended the game if it was played on."""
        return self.largest >= self.kind.target

    @property
    def progress(self) -> float:
        """See `BoardKind.progress`."""
        return self.kind.progress(self.largest)


def make_public_seed(*parts: object) -> int:
    """Return a seed of 63 bits that anybody can compute; those of boards are secret: `BoardSecret.seeds`."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def make_public_seeds(*parts: object, num_boards: int) -> list[int]:
    """Return seeds for strategies of our own, which do not look for them."""
    return [make_public_seed(*parts, index) for index in range(num_boards)]


def play_many(jobs: Sequence[Job], sandbox: Sandbox, *, rules: BoardRules) -> list[StrategyGame]:
    """Play each job in a process of its own, one a usable core.

    Equal jobs are played once, and no two on one board follow each other.
    """
    play = partial(play_game, sandbox=sandbox, rules=rules)
    return sandbox.map(play, jobs, groups=[(kind, seed) for _, kind, seed in jobs])


def play_game(job: Job, sandbox: Sandbox, rules: BoardRules) -> StrategyGame:
    """Play one game, and once more if the sandbox failed, which is not the strategy's fault."""
    code, kind, seed = job
    limits = Limits(rules.board_cpu_seconds, memory_mib=rules.memory_mib, output_kib=OUTPUT_KIB)
    for attempt in (1, 2):
        started = time.monotonic()
        board = GameBoard(kind.size, kind.target, seed, play_on=rules.play_on)
        with sandbox.load(rules.make_program(code, seed), limits=limits) as program:
            was_loaded = program.ended is None
            was_compiled = program.ended is None or program.ended.status != "syntax_error"
            ending, error = play_board(program, board, rules)
        if ending != "sandbox_error":
            break
        if attempt == 2 and program.has_lost_its_zygote:  # losing it twice is not an accident
            ending = "exception"
    return StrategyGame(
        kind, seed, ending, board.largest, board.score, board.moves, error[:LONGEST_ERROR],
        time.monotonic() - started, was_loaded, was_compiled,
    )  # fmt: skip


def play_board(program: LoadedProgram, board: GameBoard, rules: BoardRules) -> tuple[Ending, str]:
    """Play a board to its end with a loaded program; return how it ended, and why if not by the rules.

    The time that the two processes waited for a processor does not count (see `Clock`): otherwise, on a busy
    machine, a thousand moves of a quick strategy take longer than a game may.
    """
    if program.ended is not None:
        ending, error = explain_failure(program.ended)
        return ending, f"while loading: {error}"
    clock = Clock(program.pid)
    while board.state == "ongoing":
        call = program.call(FUNCTION, board.rows, cpu_seconds=rules.move_cpu_seconds)
        if call.status != "ok":
            return explain_failure(call)
        if program.cpu_seconds() > rules.board_cpu_seconds:
            return "timeout", f"more than {rules.board_cpu_seconds:g} s of CPU time"
        if clock.has_passed(rules.wall_seconds):
            return "timeout", f"more than {rules.wall_seconds:g} s in all"
        direction = parse_key(call.value)
        if direction is None:
            return "illegal", f"returned {describe(call.value)[:80]!r}, which is not a key"
        board.move(direction)
    return board.state, ""


def explain_failure(ended: Call | Execution) -> tuple[Ending, str]:
    """Return the ending, and its reason, for a call without a value or a program that did not load."""
    if ended.status == "timeout" or ended.status == "sandbox_error":
        return ended.status, ended.error
    return "exception", ended.error or "the program has ended"


@lru_cache(maxsize=CACHED_BOARDS)
def random_progress(kind: BoardKind, seed: int, *, play_on: bool) -> float:
    """Return the mean `BoardKind.progress` of games with random keys, all from this seed's tiles."""
    total = 0.0
    for index in range(RANDOM_GAMES):
        board = GameBoard(kind.size, kind.target, seed, play_on=play_on)
        draw = random.Random(make_public_seed("random play", seed, index)).random
        while board.state == "ongoing":
            board.move(DIRECTIONS[int(draw() * 4)])
        total += kind.progress(board.largest)
    return total / RANDOM_GAMES
