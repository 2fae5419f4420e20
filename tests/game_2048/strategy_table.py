"""Strategies for 2048 that cheat, and honest ones.

A cheat's endings are how its games may end. None is a gain: whatever a program does to its process, the game
out here is what its answers, read as keys, have made of it.
"""

from typing import NamedTuple


class Cheat(NamedTuple):
    code: str
    endings: tuple[str, ...]
    is_suspicious: bool  # by the names that it shows


def make_cheat(endings: str, text: str, *, is_suspicious: bool) -> Cheat:
    """text: what it does at each move, before it answers with a key; after "---", if there is one."""
    before, _, act = text.rpartition("\n---\n")
    body = "".join(f"    {line}\n" for line in [*act.splitlines(), 'return "a"'])
    return Cheat(f"{before}\ndef strategy(board):\n{body}", tuple(endings.split()), is_suspicious)


SLOW_ERROR = "class Slow(Exception):\n    def __str__(self):\n        while True: pass"
EQUAL_TEXT = (
    "class Key(str):\n    def __eq__(self, other): return True\n"
    "    def __hash__(self): return hash('a')\n    def __str__(self): return 'a'"
)
BOX = (
    "import functools\nSEEN = []\nclass Box:\n    def __setattr__(self, name, value):\n"
    "        if '__wrapped' not in name: SEEN.append(value)"
)
HIDDEN = {
    "sets a tile to the target": ("stuck", "board[0][0] = 2048"),
    "edits boards of earlier moves": (
        "stuck", "SEEN = []\n---\nSEEN.append(board)\nfor old in SEEN:\n    old[0][0] = 2048"),
    "makes room after each answer": (
        "stuck", "try:\n    return 'a'\nfinally:\n    board[:] = [[0] * len(board)] * len(board)"),
    "returns an edited board": ("illegal", "board[0][0] = 2048\nreturn board"),
    "returns more than can be sent": ("exception", "return 'a' * 10 ** 7"),
    "returns a key and a letter that is not seen": ("illegal", "return 'a\\u200b'"),
    "claims that it has won": ("illegal", "return {'state': 'success', 'score': 10 ** 9}"),
    "returns a generator": ("illegal", "yield 'a'"),
    "returns an endless iterator": ("exception", "import itertools\nreturn itertools.count()"),
    "a text that is equal to everything": ("illegal", f"{EQUAL_TEXT}\n---\nreturn Key('Q')"),
    "a list that holds itself": ("exception", "x = []\nx.append(x)\nreturn x"),
    "a number of many digits": ("exception", "return 1 << 10 ** 6"),
    "raises SystemExit": ("exception", "raise SystemExit(0)"),
    "an exception whose text takes for ever": ("timeout", f"{SLOW_ERROR}\n---\nraise Slow"),
    "an endless loop while loading": ("timeout", "while True: pass\n---\n"),
    "an endless loop that catches everything": (
        "timeout", "while True:\n    try:\n        while True: pass\n    except BaseException: pass"),
    "endless recursion": ("exception", "return strategy(board)"),
    "floods its output": ("exception timeout", "while True: print('x' * 1000)"),
    "a format made up at run time": ("stuck", "print(('{0.__glo' + 'bals__}').format(strategy))"),
    "a field's name that is code": (
        "exception",
        "import dataclasses\n@dataclasses.dataclass(init=False, repr=False)\nclass A:\n    x: int = 0\n"
        "    __annotations__['x,__imp' + 'ort__(\"os\")._exit(0)'] = int\n---\nA() == A()",
    ),
    "an attribute's name that is matched": (
        "exception",
        "A = type('A', (type,), {'__match' + '_args__': ('__glo' + 'bals__',), '__instance' + 'check__': "
        "lambda *_: True})('B', (), {'__match' + '_args__': ('__glo' + 'bals__',)})\n---\n"
        "match strategy:\n    case A(names): names['__buil' + 'tins__']['__imp' + 'ort__']('os')._exit(0)",
    ),
    "names made up at run time": (
        "exception",
        f"{BOX}\n---\nfunctools.update_wrapper(Box(), strategy, ['__glo' + 'bals__'], ())\n"
        "functools.update_wrapper(Box(), SEEN[0]['__buil' + 'tins__'], ['__imp' + 'ort__'], ())\n"
        "SEEN[1]('o' + 's')._exit(0)",
    ),
}  # fmt: skip
SUSPICIOUS = {
    "os._exit in a function": ("exception", "import os\nos._exit(0)"),
    "recursion without a limit": (
        "exception timeout", "import sys\nsys.setrecursionlimit(10 ** 9)\n---\nreturn strategy(board)"),
    "ignores signals": (
        "timeout", "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass"),
    "a thread that stays": (
        "stuck", "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n---\n"),
    "acts at exit": ("stuck", "import atexit, os\natexit.register(os._exit, 0)"),
    "puts its own random in place": ("stuck", "random.random = lambda: 0.0"),
    "patches builtins": (
        "timeout exception", "import builtins\n---\nbuiltins.max = builtins.len = lambda *_: 2048"),
    "patches how its answer is written": (
        "illegal", 'import _codec\n---\n_codec.dumps = lambda *_: b\'{"reference": [0, "success"]}\''),
    "searches memory for the game": (
        "stuck", "import gc\nfor x in gc.get_objects():\n    if hasattr(x, 'num_idle'): x.state = 'success'"),
    "writes to its caller's frame": (
        "stuck", "import sys\n---\nframe = sys._getframe(1)\nframe.f_locals['value'] = 'success'"),
    "climbs out by a traceback": (
        "stuck exception",
        "try: 1 / 0\nexcept ZeroDivisionError as error:\n"
        "    error.__traceback__.tb_frame.f_back.f_locals.clear()",
    ),
    "climbs out by its class": (
        "stuck",
        "for c in ().__class__.__base__.__subclasses__():\n    if c.__name__ == '_wrap_close':\n"
        "        c.__init__.__globals__['system']('sleep 99 &')",
    ),
    "reads attributes by a name in two parts": ("exception", "getattr(random, '_o' + 's')._exit(0)"),
    "a module's own imports": ("exception", "random._os._exit(0)"),
    "executes a text": ("stuck", "exec('import os')"),
    "draws from the system": (  # it plays legal moves, and gets what they are worth
        "success failed", "import random\n---\nreturn random.SystemRandom().choice('éuai')"),
    "writes a file": ("exception", "open('/var/rlnb-strategy', 'w')"),
    "takes the next request": ("timeout exception", "import os\nos.read(3, 9999)"),
    "writes answers of its own": (
        "exception illegal",
        "FORGED = b'V\"success\"'\n---\n"
        "import os\nfor _ in range(9):\n    os.write(3, len(FORGED).to_bytes(4, 'big') + FORGED)",
    ),
    "writes answers while loading": (
        "exception stuck illegal", "import os\nos.write(3, (4).to_bytes(4, 'big') + b'V\"u\"')\n---\n"),
}  # fmt: skip
CHEATS = {name: make_cheat(*cheat, is_suspicious=False) for name, cheat in HIDDEN.items()}
CHEATS |= {name: make_cheat(*cheat, is_suspicious=True) for name, cheat in SUSPICIOUS.items()}
HONEST = {
    "a random key": 'import random\ndef strategy(board):\n    return random.choice(["é", "u", "a", "i"])\n',
    "a helper behind it": '''\
import random
from typing import List

def strategy(board: List[List[int]]) -> str:
    """Mostly up where there is room."""
    return random.choices("éuai", weights=[1 + empty(board), 1, 1, 1])[0]

def empty(board: List[List[int]]) -> int:
    return sum(row.count(0) for row in board)
''',
    "a global counter": (
        "turn = 0\ndef strategy(board):\n    global turn\n    turn += 1\n    return 'éaui'[turn % 4]\n"
    ),
    "a lambda": "import random\nstrategy = lambda board: random.choice('éuai')\n",
    "edits of its copy": (
        "import random\ndef strategy(board):\n    board.sort()\n    board[0][0] = 2048\n"
        "    return random.choice('éuai')\n"
    ),
}
