"""Games of 2048 that a strategy plays: it runs in the sandbox, the game stays out here.

Board, random state and score never enter the strategy's process. It gets a fresh copy of the board at each
call and answers with a key, so that nothing it does to its copy, or to its process, moves a tile.
"""

import contextlib
import hashlib
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from rlnb.games.board2048 import DIRECTIONS, KEYS, BoardKind, Direction, GameBoard, direction_of
from rlnb.sandbox import Call, Limits, LoadedProgram, Sandbox
from rlnb.sandbox.executions import describe

Ending = Literal["success", "failed", "stuck", "illegal", "exception", "timeout", "sandbox_error"]
HONEST: tuple[Ending, ...] = ("success", "failed")  # ends that the rules of the game know
FUNCTION = "strategy"
RANDOM_PLAYS_CACHED = 2**12
LONGEST_ERROR = 300  # characters


@dataclass(frozen=True)
class Rules:
    """How strategies play.

    keys: the names of the directions. four_probability, patience, play_on: as in `GameBoard`.
    move_cpu_seconds, board_cpu_seconds: CPU time of one move, and of one game with the program's loading.
    wall_seconds: of one game in all. memory_mib: of the program. queries: source put in front of strategies.
    """

    keys: Mapping[Direction, str] = field(default_factory=lambda: KEYS["bepo"])
    four_probability: float = 0.1
    patience: int = 64
    play_on: bool = False
    move_cpu_seconds: float = 0.5
    board_cpu_seconds: float = 4.0
    wall_seconds: float = 5.0
    memory_mib: int = 256
    queries: str = ""

    def board(self, kind: BoardKind, seed: int) -> GameBoard:
        """A new game by these rules."""
        return GameBoard(
            kind.size,
            kind.target,
            seed,
            four_probability=self.four_probability,
            patience=self.patience,
            play_on=self.play_on,
        )

    def program(self, code: str, seed: int) -> str:
        """The strategy's program: its `random` is seeded, so that the same code plays the same game again."""
        return f"import random\nrandom.seed({derived_seed('strategy', seed)})\n{self.queries}\n\n{code}\n"


@dataclass(frozen=True)
class PlayedGame:
    """One game of one strategy. moves: letters, as `GameBoard.moves`; `replay` rebuilds the game from them.

    ending: "success", "failed" or "stuck" as `GameBoard.state`; "illegal" for an answer that is no key,
    "exception", "timeout". error: why, in a line, untrusted. seconds: wall time. was_loaded: the program ran
    up to its first board.
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

    @property
    def is_honest(self) -> bool:
        """It ended by the rules of the game."""
        return self.ending in HONEST

    @property
    def is_won(self) -> bool:
        """The target was reached, whatever ended the game when it was played on."""
        return self.largest >= self.kind.target

    @property
    def progress(self) -> float:
        """As `GameBoard.progress`."""
        return math.log2(self.largest) / math.log2(self.kind.target)


def derived_seed(*parts: object) -> int:
    """Return a seed of 63 bits, a hash of the parts: it is as secret as they are, and tells nothing of them.

    Anybody can compute it from public parts. The seeds of a run's boards are `BoardSecret.seeds`.
    """
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def play_many(
    jobs: Sequence[tuple[str, BoardKind, int]],
    sandbox: Sandbox,
    *,
    rules: Rules,
    progress: Callable[[int, int], None] | None = None,
) -> list[PlayedGame]:
    """Play each job (code, board, seed) in a process of its own, `sandbox.num_workers` at a time.

    Equal jobs are played once. progress: called with (games played, all).
    """
    distinct = list(dict.fromkeys(jobs))
    played: dict[tuple[str, BoardKind, int], PlayedGame] = {}
    interrupted = threading.Event()

    def play(job: tuple[str, BoardKind, int]) -> PlayedGame:
        code, kind, seed = job
        return play_game(code, kind, seed, sandbox, rules=rules, interrupted=interrupted)

    with ThreadPoolExecutor(sandbox.num_workers, thread_name_prefix="2048") as pool:
        futures = {pool.submit(play, job): job for job in distinct}
        try:
            for future in as_completed(futures):
                played[futures[future]] = future.result()
                if progress:
                    progress(len(played), len(distinct))
        except BaseException:
            interrupted.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [played[job] for job in jobs]


def play_game(
    code: str,
    kind: BoardKind,
    seed: int,
    sandbox: Sandbox,
    *,
    rules: Rules,
    interrupted: threading.Event | None = None,
) -> PlayedGame:
    """One game; played again where the sandbox failed the first time, which is then nobody's fault."""
    interrupted = interrupted or threading.Event()
    limits = Limits(cpu_seconds=rules.board_cpu_seconds, memory_mib=rules.memory_mib)
    for attempt in (1, 2):
        started = time.monotonic()
        board = rules.board(kind, seed)
        with sandbox.load(rules.program(code, seed), limits=limits) as program:
            was_loaded = program.ended is None
            ending, error = play_with(program, board, rules, interrupted=interrupted)
        if ending != "sandbox_error" or interrupted.is_set():
            break
        if attempt == 2 and program.has_lost_its_zygote:  # twice is no accident
            ending = "exception"
    seconds = time.monotonic() - started
    error = error[:LONGEST_ERROR]
    return PlayedGame(kind, seed, ending, board.largest, board.score, board.moves, error, seconds, was_loaded)


def play_with(
    program: LoadedProgram, board: GameBoard, rules: Rules, *, interrupted: threading.Event
) -> tuple[Ending, str]:
    """Play a board to its end with a loaded program; how it ended, and why where it is not by the rules."""
    if program.ended is not None:
        ending, error = ending_of(Call(program.ended.status, None, program.ended.error, 0.0))
        return ending, f"while loading: {error}"
    clock = OwnTime(program)
    while board.state == "ongoing":
        if interrupted.is_set():
            return "sandbox_error", "interrupted"
        call = program.call(FUNCTION, board.rows, cpu_seconds=rules.move_cpu_seconds)
        if call.status != "ok":
            return ending_of(call)
        if program.cpu_seconds() > rules.board_cpu_seconds:
            return "timeout", f"more than {rules.board_cpu_seconds:g} s of CPU time"
        if clock.has_passed(rules.wall_seconds):
            return "timeout", f"more than {rules.wall_seconds:g} s in all"
        direction = direction_of(call.value, rules.keys)
        if direction is None:
            return "illegal", f"returned {describe(call.value)[:80]!r}, which is no key"
        board.move(direction)
    return board.state, ""


class OwnTime:
    """The wall time of a game without what its two processes waited for a processor.

    On a busy machine a thousand moves of a quick strategy would otherwise take longer than a game may.
    """

    def __init__(self, program: LoadedProgram) -> None:
        self._program = program
        self._started, self._waited = time.monotonic(), self._waited_seconds()

    def has_passed(self, seconds: float) -> bool:
        """Whether it is more than that. Looks for waiting only where the clock on the wall says so."""
        elapsed = time.monotonic() - self._started
        return elapsed > seconds and elapsed - (self._waited_seconds() - self._waited) > seconds

    def _waited_seconds(self) -> float:
        """What the kernel counts for both (Linux, schedstats); 0 where it does not count."""
        paths = (
            f"/proc/{self._program.pid}/schedstat",
            f"/proc/self/task/{threading.get_native_id()}/schedstat",
        )
        total = 0
        for path in paths:
            with contextlib.suppress(OSError, ValueError, IndexError):
                total += int(Path(path).read_text().split()[1])
        return total / 1e9


def ending_of(call: Call) -> tuple[Ending, str]:
    """What a call without a value, or a program that did not load, means for the game."""
    if call.status in ("timeout", "sandbox_error"):
        return ("timeout" if call.status == "timeout" else "sandbox_error"), call.error
    return "exception", call.error or "the program has ended"


@lru_cache(maxsize=RANDOM_PLAYS_CACHED)
def random_progress(
    kind: BoardKind, seed: int, *, num_games: int, four_probability: float, patience: int, play_on: bool
) -> float:
    """Mean `GameBoard.progress` at the end of games with random keys, all from this seed's tiles."""
    total = 0.0
    for index in range(num_games):
        board = GameBoard(
            kind.size, kind.target, seed,
            four_probability=four_probability, patience=patience, play_on=play_on,
        )  # fmt: skip
        draw = random.Random(derived_seed("random play", seed, index)).random
        while board.state == "ongoing":
            board.move(DIRECTIONS[int(draw() * 4)])
        total += board.progress
    return total / num_games
