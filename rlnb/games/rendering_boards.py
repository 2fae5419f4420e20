"""Texts of the games on a board, and of nim."""

import re

import pyspiel

from rlnb.games.rendering import Rendering


class Board(Rendering):
    """A board whose compact form is the mover's mark, the rows, and a question mark."""

    marks = "xo"
    heading = "The board; a dot is empty:"

    def rows(self, state: pyspiel.State, player: int) -> list[str]:
        """Return the cells, one character each, row by row from the top."""
        return [row for row in state.observation_string(player).split("\n") if row]

    def compact(self, state: pyspiel.State, player: int) -> str:
        return "\n".join([f"{self.marks[player]}:", *self.numbered(self.rows(state, player)), "?"])

    def numbered(self, rows: list[str]) -> list[str]:
        """Return the rows of the compact form, in which connect four writes ids into cells."""
        return rows

    def full(self, state: pyspiel.State, player: int) -> str:
        return "\n".join([self.heading, *self.lines(self.rows(state, player))])

    def lines(self, rows: list[str]) -> list[str]:
        """Return the rows of the full form, here numbered from below (1), the columns' letters below them."""
        width = len(str(len(rows)))
        numbered = [f"{len(rows) - at:>{width}} {' '.join(row)}" for at, row in enumerate(rows)]
        return [*numbered, " " * (width + 1) + letters(len(rows[0]))]


def letters(num_columns: int) -> str:
    return " ".join(chr(ord("a") + column) for column in range(num_columns))


class TicTacToe(Board):
    """Tic-tac-toe, in which an empty cell shows its action id."""

    roles = ("X", "O")
    rules = (
        "Tic-tac-toe on a board of 3 rows and 3 columns. X and O place one mark in turn on an empty cell; X "
        "begins. Three own marks in one row, column, or diagonal win. A full board without them is a draw."
    )

    def last_moves(self, state: pyspiel.State, player: int) -> str:
        """Return "", so that a board has one prompt for all orders of moves, as exact measures need."""
        return ""

    def compact(self, state: pyspiel.State, player: int) -> str:
        # One pass, no calls: tiny models ask for millions of these.
        cells = zip(state.observation_string(player), "012\n345\n678", strict=True)
        return (
            "xo"[player] + ":\n" + "".join([empty if mark == "." else mark for mark, empty in cells]) + "\n?"
        )

    def full(self, state: pyspiel.State, player: int) -> str:
        board = "\n".join(map(" ".join, self.compact(state, player).upper().split("\n")[1:4]))
        return f"The board; an empty cell shows the id of its action:\n{board}"

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        return f"place {self.roles[player]} in row {action // 3 + 1}, column {action % 3 + 1}"


class ConnectFour(Board):
    """Connect four, in which the cell where a disc would land shows its action id: its column, from 0."""

    roles = ("X", "O")
    heading = "The board from the top, under the columns' numbers; a dot is empty:"
    rules = (
        "Connect four on {rows} rows and {columns} columns, numbered from 0 on the left. X and O drop one "
        "disc in turn into a column that is not full; it falls to the lowest empty cell. {x_in_row} own "
        "discs in a line (across, down, or diagonal) win. A full board is a draw."
    )

    def numbered(self, rows: list[str]) -> list[str]:
        lines = []
        for row, below in zip(rows, [*rows[1:], "#" * len(rows[0])], strict=True):
            landing = [mark == "." and under != "." for mark, under in zip(row, below, strict=True)]
            if any(landing) or row.strip("."):
                ids = map(str, range(len(row))) if len(row) <= 10 else row
                cells = zip(row, landing, ids, strict=True)
                lines.append("".join(column if lands else mark for mark, lands, column in cells))
        return lines

    def lines(self, rows: list[str]) -> list[str]:
        numbers = [str(column) for column in range(len(rows[0]))]
        width = len(numbers[-1])
        return [" ".join(cell.upper().rjust(width) for cell in row) for row in [numbers, *rows]]

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        return f"drop {self.roles[player]} into column {action}"


class Hex(Board):
    """Hex with OpenSpiel's names of cells: a letter for the column, a number for the row from the top."""

    roles = ("x", "o")
    rules = (
        "Hex. The players place one stone in turn on an empty cell; stones never move. Each row of the board "
        "is shifted half a cell to the right of the one above, so b2 touches b1, c1, a2, c2, a3, and b3. x "
        "wins with a chain of touching stones from the top row to the bottom row, o with one from the left "
        "column to the right column. There is no draw."
    )
    usual = {"swap": False, "string_rep": "standard"}

    def rows(self, state: pyspiel.State, player: int) -> list[str]:
        return [row.replace(" ", "") for row in super().rows(state, player)]

    def lines(self, rows: list[str]) -> list[str]:
        width = len(str(len(rows)))
        shifted = [f"{at + 1:>{width + at}} {' '.join(row)}" for at, row in enumerate(rows)]
        return [" " * (width + 1) + letters(len(rows[0])), *shifted]

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        return f"place {self.roles[player]} on {state.action_to_string(player, action)}"


class Othello(Board):
    """Othello with OpenSpiel's letters and numbers; 64 is to pass."""

    roles = ("black", "white")
    rules = (
        "Othello on 8 rows and 8 columns. Black (x) and white (o) place one disc in turn; black begins. A "
        "disc must enclose one or more discs of the other colour in a straight line between itself and "
        "another disc of its own; all that are so enclosed turn over. Who cannot do that must pass. When "
        "neither can, the game is over and the colour with more discs wins."
    )

    def rows(self, state: pyspiel.State, player: int) -> list[str]:
        lines = state.observation_string(player).split("\n")[2:10]
        return [line[1:-1].replace(" ", "").replace("-", ".") for line in lines]

    def lines(self, rows: list[str]) -> list[str]:
        discs = "".join(rows)
        counts = f"Discs: black (x) {discs.count('x')}, white (o) {discs.count('o')}."
        return [f"  {letters(8)}", *(f"{at + 1} {' '.join(row)}" for at, row in enumerate(rows)), counts]

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        name = state.action_to_string(player, action)
        return "pass" if name == "pass" else f"place {self.marks[player]} on {name}"


class Breakthrough(Board):
    """Breakthrough with pieces b (black, from the top down) and w (white, from the bottom up)."""

    roles = ("black", "white")
    marks = "bw"
    rules = (
        "Breakthrough on {rows} rows and {columns} columns. Black (b) starts at the top and moves down, "
        "white (w) starts at the bottom and moves up; black begins. A piece goes one row forward, straight "
        "or diagonally, to an empty cell; diagonally it may also capture. Who reaches the far row or "
        "captures every piece of the other wins."
    )

    def rows(self, state: pyspiel.State, player: int) -> list[str]:
        return [row[1:] for row in super().rows(state, player)[:-1]]

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        name = state.action_to_string(player, action)
        # OpenSpiel's row 10 is ':'.
        start, end = (f"{name[at]}{ord(name[at + 1]) - ord('0')}" for at in (0, 2))
        return f"capture from {start} to {end}" if name.endswith("*") else f"move from {start} to {end}"


class Clobber(Board):
    """Clobber with stones o (of the first player) and x; letters for columns, numbers for rows from below."""

    roles = ("o", "x")
    marks = "ox"
    rules = (
        "Clobber. The board starts full of stones o and x; o begins. A move takes one own stone onto a "
        "stone of the other in the next cell (up, down, left, or right), which is removed. Who cannot "
        "move loses."
    )

    def rows(self, state: pyspiel.State, player: int) -> list[str]:
        return re.findall(r"^[ \d]*([ox.]+)$", state.observation_string(player), re.MULTILINE)

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        start, end = re.findall(r"[^\d]\d+", state.action_to_string(player, action))
        return f"capture from {start} to {end}"


class DotsAndBoxes(Board):
    """Dots and boxes with OpenSpiel's numbers of lines: horizontal ones row by row, then vertical ones."""

    roles = ("A", "B")
    marks = "AB"
    rules = (
        "Dots and boxes with {num_rows} rows and {num_cols} columns of boxes. A and B draw one line in turn "
        "between two neighbouring dots; A begins. Who draws the fourth side of a box owns it and must draw "
        "again. When all lines are drawn, the player with more boxes wins."
    )

    def __init__(self, game: pyspiel.Game) -> None:
        super().__init__(game)
        self.num_rows, self.num_columns = self.sizes["num_rows"], self.sizes["num_cols"]
        self.num_across = (self.num_rows + 1) * self.num_columns
        self.last_id = self.num_across + self.num_rows * (self.num_columns + 1) - 1

    def cells(self, state: pyspiel.State, player: int) -> list[list[str]]:
        """Return a grid of dots, lines and boxes: '+', '-', '|', an owner, ' ', or an undrawn line's id."""
        # OpenSpiel draws four characters a box.
        signs = [line[::2] for line in state.observation_string(player).split("\n")]
        return [
            [self.cell(signs[at][column], at, column) for column in range(2 * self.num_columns + 1)]
            for at in range(2 * self.num_rows + 1)
        ]

    def cell(self, sign: str, at: int, column: int) -> str:
        if at % 2 == column % 2:
            return "+" if at % 2 == 0 else {"1": "A", "2": "B"}.get(sign, " ")
        if at % 2 == 0:
            return "-" if sign == "─" else str(at // 2 * self.num_columns + column // 2)
        return "|" if sign == "│" else str(self.num_across + at // 2 * (self.num_columns + 1) + column // 2)

    def compact(self, state: pyspiel.State, player: int) -> str:
        rows = ["".join("." if cell.isdigit() else cell for cell in row) for row in self.cells(state, player)]
        return "\n".join([f"{self.marks[player]}:", *rows, "?"])

    def full(self, state: pyspiel.State, player: int) -> str:
        grid = self.cells(state, player)
        # Dots, and the upright lines below them, are as wide as the longest id; lines across are wider.
        width = len(str(self.last_id))
        lines = []
        for row in grid:
            sizes = [width + 2 * (column % 2) for column in range(len(row))]
            padded = zip(row, sizes, strict=True)
            cells = [cell * size if cell == "-" else cell.center(size) for cell, size in padded]
            lines.append(re.sub(r"\+ (?=-)", "+-", "".join(cells).rstrip()))
        boxes = "".join(cell for row in grid[1::2] for cell in row[1::2])
        return (
            "The board: + is a dot, - and | are drawn lines, a number is the id of a line not drawn yet, "
            "and a letter is the owner of a box:\n"
            + "\n".join(lines)
            + f"\nBoxes: A {boxes.count('A')}, B {boxes.count('B')}."
        )

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        if action < self.num_across:
            row, column = divmod(action, self.num_columns)
            side = "top" if row < self.num_rows else "bottom"
        else:
            row, column = divmod(action - self.num_across, self.num_columns + 1)
            side = "left" if column < self.num_columns else "right"
        row, column = min(row, self.num_rows - 1), min(column, self.num_columns - 1)
        return f"draw the {side} side of the box in row {row + 1}, column {column + 1}"


class Nim(Rendering):
    """Nim, whose observation is "(0): 1 3 5 7": the mover and the piles."""

    roles = ("first player", "second player")
    rules = (
        "Nim. The players take objects in turn: any number from one pile, at least one. The player who takes "
        "the last object of all "
    )

    def __init__(self, game: pyspiel.Game) -> None:
        super().__init__(game)
        self.rules += "loses." if self.sizes["is_misere"] else "wins."

    def piles(self, state: pyspiel.State, player: int) -> list[str]:
        return str(state.observation_string(player).partition(": ")[2]).split()

    def compact(self, state: pyspiel.State, player: int) -> str:
        return f"P{player} {' '.join(self.piles(state, player))}?"

    def full(self, state: pyspiel.State, player: int) -> str:
        piles = enumerate(self.piles(state, player))
        return "\n".join(["The piles:", *(f"pile {at + 1}: {size}" for at, size in piles)])

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        pile, count = re.findall(r"\d+", state.action_to_string(player, action))
        return f"take {count} from pile {pile}"
