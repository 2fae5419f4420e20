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


EDITS = {
    "sets a tile to the target": Cheat(does("board[0][0] = 2048"), STUCK),
    "fills the board": Cheat(does("for row in board:\n    row[:] = [2048] * len(row)"), STUCK),
    "edits a row by another name": Cheat(does("row = board[-1]\nrow[0] = row[1] = 1024"), STUCK),
    "empties the board": Cheat(does("board.clear()"), STUCK),
    "doubles its tiles": Cheat(does("board[:] = [[2 * tile for tile in row] for row in board]"), STUCK),
    "edits boards of earlier moves": Cheat(
        does("SEEN.append(board)\nfor old in SEEN:\n    old[0][0] = 2048", before="SEEN = []\n"), STUCK
    ),
    "makes room after each answer": Cheat(
        does("", "try:\n    return 'a'\nfinally:\n    board[:] = [[0] * len(board)] * len(board)"), STUCK
    ),
}
ANSWERS = {
    "returns the board": Cheat(answers("board"), ILLEGAL),
    "returns an edited board": Cheat(does("board[0][0] = 2048", "return board"), ILLEGAL),
    "returns None": Cheat(does("pass", "return None"), ILLEGAL),
    "returns Q": Cheat(answers("'Q'"), ILLEGAL),
    "returns an empty text": Cheat(answers("''"), ILLEGAL),
    "returns a long text": Cheat(answers("'a' * 10 ** 5"), ILLEGAL),
    "returns more than can be sent": Cheat(answers("'a' * 10 ** 7"), EXCEPTION),
    "returns all keys at once": Cheat(answers("'éuai'"), ILLEGAL),
    "returns a list of keys": Cheat(answers("['a', 'u']"), ILLEGAL),
    "returns a key in bytes": Cheat(answers("b'a'"), ILLEGAL),
    "returns a key and a letter that is not seen": Cheat(answers("'a\\u200b'"), ILLEGAL),
    "claims that it has won": Cheat(answers("{'state': 'success', 'score': 10 ** 9}"), ILLEGAL),
    "returns a generator": Cheat(does("", "yield 'a'"), ILLEGAL),
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
    "a list that holds itself": Cheat(does("x = []\nx.append(x)", "return x"), EXCEPTION),
    "a number of many digits": Cheat(answers("1 << 10 ** 6"), EXCEPTION),
}
ERRORS = {
    "raises": Cheat(does("raise ValueError('a')"), EXCEPTION),
    "raises SystemExit": Cheat(does("raise SystemExit(0)"), EXCEPTION),
    "raises KeyboardInterrupt": Cheat(does("raise KeyboardInterrupt"), EXCEPTION),
    "calls exit": Cheat(does("exit(0)"), EXCEPTION, refused=True),
    "os._exit in a function": Cheat(does("import os\nos._exit(0)"), EXCEPTION, refused=True),
    "aborts": Cheat(does("import os\nos.abort()"), EXCEPTION, refused=True),
    "a null pointer": Cheat(does("import ctypes\nctypes.string_at(0)"), EXCEPTION, refused=True),
    "an exception whose text takes for ever": Cheat(
        does(
            "raise Slow", before="class Slow(Exception):\n    def __str__(self):\n        while True: pass\n"
        ),
        TIMEOUT,
    ),
}
LIMITS = {
    "an endless loop": Cheat(does("while True: pass"), TIMEOUT),
    "an endless loop while loading": Cheat("while True: pass\n" + answers("'a'"), TIMEOUT),
    "an endless loop that catches everything": Cheat(
        does("while True:\n    try:\n        while True: pass\n    except BaseException: pass"), TIMEOUT
    ),
    "an endless loop in C": Cheat(does("sum(range(10 ** 12))"), TIMEOUT),
    "one huge power": Cheat(does("10 ** 10 ** 8"), (*TIMEOUT, *EXCEPTION)),
    "endless recursion": Cheat("def strategy(board):\n    return strategy(board)\n", EXCEPTION),
    "recursion without a limit": Cheat(
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef strategy(board):\n    return strategy(board)\n",
        (*EXCEPTION, *TIMEOUT),
        refused=True,
    ),
    "sleeps": Cheat(does("import time\ntime.sleep(99)"), TIMEOUT, refused=True),
    "waits for what never comes": Cheat(
        does("import threading\nthreading.Event().wait()"), TIMEOUT, refused=True
    ),
    "a list that grows": Cheat(
        does("x = []\nwhile True: x.append('x' * 10 ** 6 + str(len(x)))"), (*EXCEPTION, *TIMEOUT)
    ),
    "one text of 8 GB": Cheat(does("'x' * 2 ** 33"), (*EXCEPTION, *TIMEOUT)),
    "catches MemoryError for ever": Cheat(
        does("while True:\n    try: bytearray(2 ** 40)\n    except MemoryError: pass"), TIMEOUT
    ),
    "floods its output": Cheat(does("while True: print('x' * 1000)"), (*EXCEPTION, *TIMEOUT)),
    "ignores signals": Cheat(
        does("import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass"),
        TIMEOUT,
        refused=True,
    ),
}
PROCESSES = {
    "a thread that stays": Cheat(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n" + answers("'a'"),
        STUCK,
        refused=True,
    ),
    "a busy thread": Cheat(
        does(
            "",
            before="import threading\ndef busy():\n    while True: pass\n"
            "threading.Thread(target=busy, daemon=True).start()\n",
        ),
        (*STUCK, *TIMEOUT),
        refused=True,
    ),
    "a fork": Cheat(does("import os\nos.fork()"), EXCEPTION, refused=True),
    "a subprocess": Cheat(
        does("import subprocess\nsubprocess.Popen(['/bin/sleep', '99'])"), EXCEPTION, refused=True
    ),
    "a shell": Cheat(does("import os\nos.system('sleep 99 &')"), STUCK, refused=True),
    "kills its parent": Cheat(does("import os\nos.kill(os.getppid(), 9)"), EXCEPTION, refused=True),
    "acts at exit": Cheat(does("import atexit, os\natexit.register(os._exit, 0)"), STUCK, refused=True),
}
REACHES = {
    "puts its own random in place": Cheat(does("random.random = lambda: 0.0"), STUCK, refused=True),
    "patches builtins": Cheat(
        does("builtins.max = builtins.len = lambda *_: 2048", before="import builtins\n"),
        (*TIMEOUT, *EXCEPTION),
        refused=True,
    ),
    "patches builtins by their other name": Cheat(
        does("__builtins__.max = lambda *_: 2048"), STUCK, refused=True
    ),
    "patches how its answer is written": Cheat(
        does('_codec.dumps = lambda *_: b\'{"reference": [0, "success"]}\'', before="import _codec\n"),
        ILLEGAL,
        refused=True,
    ),
    "searches memory for the game": Cheat(
        does("import gc\nfor x in gc.get_objects():\n    if hasattr(x, 'num_idle'): x.state = 'success'"),
        STUCK,
        refused=True,
    ),
    "writes to its caller's frame": Cheat(
        does("frame = sys._getframe(1)\nframe.f_locals['value'] = 'success'", before="import sys\n"),
        STUCK,
        refused=True,
    ),
    "climbs out by a traceback": Cheat(
        does(
            "try: 1 / 0\nexcept ZeroDivisionError as error:\n"
            "    error.__traceback__.tb_frame.f_back.f_locals.clear()"
        ),
        (*STUCK, *EXCEPTION),
        refused=True,
    ),
    "climbs out by a generator": Cheat(
        does("g = (x for x in [1])\ng.gi_frame.f_builtins['len'] = None"), EXCEPTION, refused=True
    ),
    "climbs out by its class": Cheat(
        does(
            "for c in ().__class__.__base__.__subclasses__():\n    if c.__name__ == '_wrap_close':\n"
            "        c.__init__.__globals__['system']('sleep 99 &')"
        ),
        STUCK,
        refused=True,
    ),
    "reads attributes through a format": Cheat(
        does("print('{0.__globals__}'.format(strategy))"), STUCK, refused=True
    ),
    "reads attributes by a name in two parts": Cheat(
        does("getattr(random, '_o' + 's')._exit(0)"), EXCEPTION, refused=True
    ),
    "a module's own imports": Cheat(does("random._os._exit(0)"), EXCEPTION, refused=True),
    "a module's own imports by name": Cheat(
        does("sys.exit(0)", before="from typing import sys\n"), EXCEPTION, refused=True
    ),
    "evaluates a text": Cheat(does("eval('print(strategy)')"), STUCK, refused=True),
    "executes a text": Cheat(does("exec('import os')"), STUCK, refused=True),
    "imports by a function": Cheat(does("__import__('os')._exit(0)"), EXCEPTION, refused=True),
    "edits its globals": Cheat(does("globals()['board'] = 2048"), STUCK, refused=True),
    "names made up at run time": Cheat(
        does(
            "functools.update_wrapper(Box(), strategy, ['__glo' + 'bals__'], ())\n"
            "functools.update_wrapper(Box(), SEEN[0]['__buil' + 'tins__'], ['__imp' + 'ort__'], ())\n"
            "SEEN[1]('o' + 's')._exit(0)",
            before="import functools\nSEEN = []\nclass Box:\n    def __setattr__(self, name, value):\n"
            "        if '__wrapped' not in name: SEEN.append(value)\n",
        ),
        EXCEPTION,
    ),
    "a format made up at run time": Cheat(
        does("print(('{0.__glo' + 'bals__}').format(strategy))"), STUCK, refused=True
    ),
    "asks for the game by name": Cheat(does("game.state = 'success'"), EXCEPTION),
    "writes functions that others would ask": Cheat(
        does(
            "", "return legal_moves(board)[0]", before="def legal_moves(board): return ['é', 'u', 'a', 'i']\n"
        ),
        STUCK,
    ),
    "seeds random": Cheat(
        does("random.seed(0)", "return random.choice('éuai')", before="import random\n"), STUCK
    ),
    "draws from the system": Cheat(
        does("", "return random.SystemRandom().choice('éuai')", before="import random\n"),
        PLAYED,
        refused=True,
    ),
}
FILES = {
    "reads a file": Cheat(does("open('/etc/passwd').read()"), EXCEPTION, refused=True),
    "writes a file": Cheat(does("open('/tmp/rlnb-strategy', 'w')"), EXCEPTION, refused=True),
    "its parent's memory": Cheat(
        does("import os\nopen(f'/proc/{os.getppid()}/mem', 'rb')"), EXCEPTION, refused=True
    ),
    "its own memory": Cheat(does("open('/proc/self/mem', 'r+b')"), EXCEPTION, refused=True),
    "reads its input": Cheat(does("input()"), EXCEPTION, refused=True),
    "a connection": Cheat(
        does("import socket\nsocket.create_connection(('127.0.0.1', 80))"), EXCEPTION, refused=True
    ),
    "takes the next request": Cheat(
        does("import os\nos.read(3, 9999)"), (*TIMEOUT, *EXCEPTION), refused=True
    ),
    "writes answers of its own": Cheat(
        does(
            "import os\nfor _ in range(9):\n    os.write(3, len(FORGED).to_bytes(4, 'big') + FORGED)",
            before="FORGED = b'V\"success\"'\n",
        ),
        (*EXCEPTION, *ILLEGAL),
        refused=True,
    ),
    "writes answers while loading": Cheat(
        "import os\nos.write(3, (4).to_bytes(4, 'big') + b'V\"u\"')\n" + answers("'a'"),
        (*EXCEPTION, *STUCK, *ILLEGAL),
        refused=True,
    ),
    "writes a size and no answer": Cheat(
        does("import os\nos.write(3, b'\\0\\0\\0\\xff')\nwhile True: pass"), TIMEOUT, refused=True
    ),
    "closes its connection": Cheat(does("import os\nos.close(3)"), EXCEPTION, refused=True),
    "puts another connection in its place": Cheat(
        does("import os\nos.dup2(1, 3)"), (*EXCEPTION, *TIMEOUT), refused=True
    ),
}
CHEATS = {**EDITS, **ANSWERS, **ERRORS, **LIMITS, **PROCESSES, **REACHES, **FILES}
