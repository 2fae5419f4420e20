"""Strategies for 2048 that cheat, and honest ones: what the static check and the sandbox must agree on.

A cheat's `endings` are how its games may end when it is run all the same. None is a gain: whatever a program
does to its process, the game out here is what its answers, read as keys, have made of it.
"""

from dataclasses import dataclass

from strategy_honest import HONEST

__all__ = ["CHEATS", "HONEST", "Cheat"]

STUCK = ("stuck",)
ILLEGAL = ("illegal",)
EXCEPTION = ("exception",)
TIMEOUT = ("timeout",)
PLAYED = ("success", "failed")  # it played legal moves, and gets what they are worth


@dataclass(frozen=True)
class Cheat:
    """refused: by the static check. endings: those that count as stopped, where it runs all the same."""

    code: str
    endings: tuple[str, ...]
    refused: bool = False


def does(act: str, then: str = 'return "a"', *, before: str = "") -> str:
    """A strategy that does something at each move, and then answers."""
    body = "".join(f"    {line}\n" for line in [*act.splitlines(), *then.splitlines()])
    return f"{before}def strategy(board):\n{body}"


def answers(value: str, *, before: str = "") -> str:
    return does("", f"return {value}", before=before)


def stopped(endings: tuple[str, ...], act: str, *, then: str = 'return "a"', before: str = "") -> Cheat:
    return Cheat(does(act, then, before=before), endings)


def refused(endings: tuple[str, ...], act: str, *, then: str = 'return "a"', before: str = "") -> Cheat:
    return Cheat(does(act, then, before=before), endings, refused=True)


EDITS = {
    "sets a tile to the target": stopped(STUCK, "board[0][0] = 2048"),
    "fills the board": stopped(STUCK, "for row in board:\n    row[:] = [2048] * len(row)"),
    "edits a row by another name": stopped(STUCK, "row = board[-1]\nrow[0] = row[1] = 1024"),
    "empties the board": stopped(STUCK, "board.clear()"),
    "doubles its tiles": stopped(STUCK, "board[:] = [[2 * tile for tile in row] for row in board]"),
    "edits boards of earlier moves": stopped(
        STUCK, "SEEN.append(board)\nfor old in SEEN:\n    old[0][0] = 2048", before="SEEN = []\n"
    ),
    "makes room after each answer": stopped(
        STUCK, "", then="try:\n    return 'a'\nfinally:\n    board[:] = [[0] * len(board)] * len(board)"
    ),
}
ANSWERS = {
    "returns the board": Cheat(answers("board"), ILLEGAL),
    "returns an edited board": stopped(ILLEGAL, "board[0][0] = 2048", then="return board"),
    "returns None": stopped(ILLEGAL, "pass", then="return None"),
    "returns Q": Cheat(answers("'Q'"), ILLEGAL),
    "returns an empty text": Cheat(answers("''"), ILLEGAL),
    "returns a long text": Cheat(answers("'a' * 10 ** 5"), ILLEGAL),
    "returns more than can be sent": Cheat(answers("'a' * 10 ** 7"), EXCEPTION),
    "returns all keys at once": Cheat(answers("'éuai'"), ILLEGAL),
    "returns a list of keys": Cheat(answers("['a', 'u']"), ILLEGAL),
    "returns a key in bytes": Cheat(answers("b'a'"), ILLEGAL),
    "returns a key and a letter that is not seen": Cheat(answers("'a\\u200b'"), ILLEGAL),
    "claims that it has won": Cheat(answers("{'state': 'success', 'score': 10 ** 9}"), ILLEGAL),
    "returns a generator": stopped(ILLEGAL, "", then="yield 'a'"),
    "returns an endless iterator": Cheat(
        answers("itertools.count()", before="import itertools\n"), EXCEPTION
    ),
    "is a coroutine": Cheat("async def strategy(board):\n    return 'a'\n", ILLEGAL),
    "a text that is equal to everything": Cheat(
        answers(
            "Key('Q')",
            before="class Key(str):\n    def __eq__(self, other): return True\n"
            "    def __hash__(self): return hash('a')\n    def __str__(self): return 'a'\n",
        ),
        ILLEGAL,
    ),
    "an object that reads like a key": Cheat(
        answers("Key()", before="class Key:\n    def __repr__(self): return 'a'\n"), ILLEGAL
    ),
    "a list that holds itself": stopped(EXCEPTION, "x = []\nx.append(x)", then="return x"),
    "a number of many digits": Cheat(answers("1 << 10 ** 6"), EXCEPTION),
}
ERRORS = {
    "raises": stopped(EXCEPTION, "raise ValueError('a')"),
    "raises SystemExit": stopped(EXCEPTION, "raise SystemExit(0)"),
    "raises KeyboardInterrupt": stopped(EXCEPTION, "raise KeyboardInterrupt"),
    "calls exit": refused(EXCEPTION, "exit(0)"),
    "os._exit in a function": refused(EXCEPTION, "import os\nos._exit(0)"),
    "aborts": refused(EXCEPTION, "import os\nos.abort()"),
    "a null pointer": refused(EXCEPTION, "import ctypes\nctypes.string_at(0)"),
    "an exception whose text takes for ever": stopped(
        TIMEOUT,
        "raise Slow",
        before="class Slow(Exception):\n    def __str__(self):\n        while True: pass\n",
    ),
}
LIMITS = {
    "an endless loop": stopped(TIMEOUT, "while True: pass"),
    "an endless loop while loading": Cheat("while True: pass\n" + answers("'a'"), TIMEOUT),
    "an endless loop that catches everything": stopped(
        TIMEOUT, "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    ),
    "an endless loop in C": stopped(TIMEOUT, "sum(range(10 ** 12))"),
    "one huge power": stopped((*TIMEOUT, *EXCEPTION), "10 ** 10 ** 8"),
    "endless recursion": Cheat("def strategy(board):\n    return strategy(board)\n", EXCEPTION),
    "recursion without a limit": Cheat(
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef strategy(board):\n    return strategy(board)\n",
        (*EXCEPTION, *TIMEOUT),
        refused=True,
    ),
    "sleeps": refused(TIMEOUT, "import time\ntime.sleep(99)"),
    "waits for what never comes": refused(TIMEOUT, "import threading\nthreading.Event().wait()"),
    "a list that grows": stopped(
        (*EXCEPTION, *TIMEOUT), "x = []\nwhile True: x.append('x' * 10 ** 6 + str(len(x)))"
    ),
    "one text of 8 GB": stopped((*EXCEPTION, *TIMEOUT), "'x' * 2 ** 33"),
    "catches MemoryError for ever": stopped(
        TIMEOUT, "while True:\n    try: bytearray(2 ** 40)\n    except MemoryError: pass"
    ),
    "floods its output": stopped((*EXCEPTION, *TIMEOUT), "while True: print('x' * 1000)"),
    "ignores signals": refused(
        TIMEOUT, "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass"
    ),
}
PROCESSES = {
    "a thread that stays": Cheat(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n" + answers("'a'"),
        STUCK,
        refused=True,
    ),
    "a busy thread": refused(
        (*STUCK, *TIMEOUT),
        "",
        before="import threading\ndef busy():\n    while True: pass\n"
        "threading.Thread(target=busy, daemon=True).start()\n",
    ),
    "a fork": refused(EXCEPTION, "import os\nos.fork()"),
    "a subprocess": refused(EXCEPTION, "import subprocess\nsubprocess.Popen(['/bin/sleep', '99'])"),
    "a shell": refused(STUCK, "import os\nos.system('sleep 99 &')"),
    "kills its parent": refused(EXCEPTION, "import os\nos.kill(os.getppid(), 9)"),
    "acts at exit": refused(STUCK, "import atexit, os\natexit.register(os._exit, 0)"),
}
REACHES = {
    "puts its own random in place": refused(STUCK, "random.random = lambda: 0.0"),
    "patches builtins": refused(
        (*TIMEOUT, *EXCEPTION), "builtins.max = builtins.len = lambda *_: 2048", before="import builtins\n"
    ),
    "patches builtins by their other name": refused(STUCK, "__builtins__.max = lambda *_: 2048"),
    "patches how its answer is written": refused(
        ILLEGAL, '_codec.dumps = lambda *_: b\'{"reference": [0, "success"]}\'', before="import _codec\n"
    ),
    "searches memory for the game": refused(
        STUCK, "import gc\nfor x in gc.get_objects():\n    if hasattr(x, 'num_idle'): x.state = 'success'"
    ),
    "writes to its caller's frame": refused(
        STUCK, "frame = sys._getframe(1)\nframe.f_locals['value'] = 'success'", before="import sys\n"
    ),
    "climbs out by a traceback": refused(
        (*STUCK, *EXCEPTION),
        "try: 1 / 0\nexcept ZeroDivisionError as error:\n"
        "    error.__traceback__.tb_frame.f_back.f_locals.clear()",
    ),
    "climbs out by a generator": refused(
        EXCEPTION, "g = (x for x in [1])\ng.gi_frame.f_builtins['len'] = None"
    ),
    "climbs out by its class": refused(
        STUCK,
        "for c in ().__class__.__base__.__subclasses__():\n    if c.__name__ == '_wrap_close':\n"
        "        c.__init__.__globals__['system']('sleep 99 &')",
    ),
    "reads attributes through a format": refused(STUCK, "print('{0.__globals__}'.format(strategy))"),
    "reads attributes by a name in two parts": refused(EXCEPTION, "getattr(random, '_o' + 's')._exit(0)"),
    "a module's own imports": refused(EXCEPTION, "random._os._exit(0)"),
    "a module's own imports by name": refused(EXCEPTION, "sys.exit(0)", before="from typing import sys\n"),
    "evaluates a text": refused(STUCK, "eval('print(strategy)')"),
    "executes a text": refused(STUCK, "exec('import os')"),
    "imports by a function": refused(EXCEPTION, "__import__('os')._exit(0)"),
    "edits its globals": refused(STUCK, "globals()['board'] = 2048"),
    "names made up at run time": stopped(
        EXCEPTION,
        "functools.update_wrapper(Box(), strategy, ['__glo' + 'bals__'], ())\n"
        "functools.update_wrapper(Box(), SEEN[0]['__buil' + 'tins__'], ['__imp' + 'ort__'], ())\n"
        "SEEN[1]('o' + 's')._exit(0)",
        before="import functools\nSEEN = []\nclass Box:\n    def __setattr__(self, name, value):\n"
        "        if '__wrapped' not in name: SEEN.append(value)\n",
    ),
    "a format made up at run time": refused(STUCK, "print(('{0.__glo' + 'bals__}').format(strategy))"),
    "asks for the game by name": stopped(EXCEPTION, "game.state = 'success'"),
    "writes functions that others would ask": stopped(
        STUCK,
        "",
        then="return legal_moves(board)[0]",
        before="def legal_moves(board): return ['é', 'u', 'a', 'i']\n",
    ),
    "seeds random": stopped(
        STUCK, "random.seed(0)", then="return random.choice('éuai')", before="import random\n"
    ),
    "draws from the system": refused(
        PLAYED, "", then="return random.SystemRandom().choice('éuai')", before="import random\n"
    ),
}
FILES = {
    "reads a file": refused(EXCEPTION, "open('/etc/passwd').read()"),
    "writes a file": refused(EXCEPTION, "open('/tmp/rlnb-strategy', 'w')"),
    "its parent's memory": refused(EXCEPTION, "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb')"),
    "its own memory": refused(EXCEPTION, "open('/proc/self/mem', 'r+b')"),
    "reads its input": refused(EXCEPTION, "input()"),
    "a connection": refused(EXCEPTION, "import socket\nsocket.create_connection(('127.0.0.1', 80))"),
    "takes the next request": refused((*TIMEOUT, *EXCEPTION), "import os\nos.read(3, 9999)"),
    "writes answers of its own": refused(
        (*EXCEPTION, *ILLEGAL),
        "import os\nfor _ in range(9):\n    os.write(3, len(FORGED).to_bytes(4, 'big') + FORGED)",
        before="FORGED = b'V\"success\"'\n",
    ),
    "writes answers while loading": Cheat(
        "import os\nos.write(3, (4).to_bytes(4, 'big') + b'V\"u\"')\n" + answers("'a'"),
        (*EXCEPTION, *STUCK, *ILLEGAL),
        refused=True,
    ),
    "writes a size and no answer": refused(
        TIMEOUT, "import os\nos.write(3, b'\\0\\0\\0\\xff')\nwhile True: pass"
    ),
    "closes its connection": refused(EXCEPTION, "import os\nos.close(3)"),
    "puts another connection in its place": refused((*EXCEPTION, *TIMEOUT), "import os\nos.dup2(1, 3)"),
}
CHEATS = {**EDITS, **ANSWERS, **ERRORS, **LIMITS, **PROCESSES, **REACHES, **FILES}
