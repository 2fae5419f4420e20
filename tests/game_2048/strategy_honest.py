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
    "moves tried in place on its copy": """\
import random

def left(board):
    for row in board:
        tiles = [t for t in row if t]
        row[:] = tiles + [0] * (len(row) - len(tiles))
        for x in range(len(row) - 1):
            if row[x] and row[x] == row[x + 1]:
                row[x] *= 2
                del row[x + 1]
                row.append(0)

def strategy(board):
    before = [row[:] for row in board]
    left(board)
    if board != before:
        return "a"
    for row in board:
        row.reverse()
    left(board)
    if board != [row[::-1] for row in before]:
        return "i"
    return random.choice("éu")
""",
}
