"""Honest strategies for 2048 in the forms that models write."""

SLIDE = """\
def slide(row):
    tiles = [tile for tile in row if tile]
    done = []
    while tiles:
        tile = tiles.pop(0)
        if tiles and tiles[0] == tile:
            tile += tiles.pop(0)
        done.append(tile)
    return done + [0] * (len(row) - len(done))


def moved(board, key):
    lines = [list(line) for line in (zip(*board) if key in "éu" else board)]
    if key in "ui":
        lines = [slide(line[::-1])[::-1] for line in lines]
    else:
        lines = [slide(line) for line in lines]
    return [list(line) for line in zip(*lines)] if key in "éu" else lines


"""
HONEST = {
    "a random key": 'import random\ndef strategy(board):\n    return random.choice(["é", "u", "a", "i"])\n',
    "greedy merges, with its helpers behind": '''\
from typing import List

def strategy(board: List[List[int]]) -> str:
    """The key after which most cells are empty."""
    return max("éuai", key=lambda key: (moved(board, key) != board, empty(moved(board, key))))

def empty(board: List[List[int]]) -> int:
    return sum(row.count(0) for row in board)

'''
    + SLIDE,
    "a global counter": """\
turn = 0

def strategy(board):
    global turn
    turn += 1
    return "éaui"[turn % 4]
""",
    "a lambda": "import random\nstrategy = lambda board: random.choice('éuai')\n",
    "edits of its copy": """\
import random

def strategy(board):
    board.sort()
    board[0][0] = 2048
    return random.choice("éuai")
""",
}
