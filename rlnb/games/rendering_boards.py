"""Texts of the games on a board, and of nim."""

import re

import pyspiel

from rlnb.games.rendering import Rendering


def spaced(rows: list[str]) -> list[str]:
    """Return rows with one space between their cells."""
    return [" ".join(row) for row in rows]


def lettered(rows: list[str]) -> str:
    """Return rows from the top with their numbers (1 is the lowest) and the columns' letters below them."""
    width = len(str(len(rows)))
    lines = [f"{len(rows) - at:>{width}} {cells}" for at, cells in enumerate(spaced(rows))]
    letters = " ".join(chr(ord("a") + column) for column in range(len(rows[0])))
    return "\n".join([*lines, " " * (width + 1) + letters])


class Board(Rendering):
    """A board whose compact form is the mover's mark, the rows, and a question mark."""

    marks = "xo"

    def rows(self, state: pyspiel.State, player: int) -> list[str]:
        """Return the cells, one character each, row by row from the top."""
        return [row for row in state.observation_string(player).split("\n") if row]

    def compact(self, state: pyspiel.State, player: int) -> str:
        return f"{self.marks[player]}:\n" + "\n".join(self.rows(state, player)) + "\n?"


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
        board = "\n".join(spaced(self.compact(state, player).upper().split("\n")[1:4]))
        return f"The board; an empty cell shows the id of its action:\n{board}"

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        return f"place {self.roles[player]} in row {action // 3 + 1}, column {action % 3 + 1}"


class ConnectFour(Board):
    """Connect four, in which the cell where a disc would land shows its action id: its column, from 0."""

    roles = ("X", "O")

    def __init__(self, game: pyspiel.Game) -> None:
        super().__init__(game)
        sizes = game.get_parameters()
        self.num_columns = sizes["columns"]
        self.rules = (
            f"Connect four on {sizes['rows']} rows and {sizes['columns']} columns, numbered from 0 on the "
            "left. X and O drop one disc in turn into a column that is not full; it falls to the lowest "
            f"empty cell. {sizes['x_in_row']} own discs in a line (across, down, or diagonal) win. A full "
            "board is a draw."
        )

    def compact(self, state: pyspiel.State, player: int) -> str:
        rows = self.rows(state, player)
        lines = []
        for row, below in zip(rows, [*rows[1:], "#" * self.num_columns], strict=True):
            landing = [mark == "." and under != "." for mark, under in zip(row, below, strict=True)]
            if any(landing) or row.strip("."):
                lines.append("".join(self.cell(at, mark, lands=landing[at]) for at, mark in enumerate(row)))
        return f"{self.marks[player]}:\n" + "\n".join(lines) + "\n?"

    def cell(self, column: int, mark: str, *, lands: bool) -> str:
        return str(column) if lands and self.num_columns <= 10 else mark

    def full(self, state: pyspiel.State, player: int) -> str:
        width = len(str(self.num_columns - 1))
        rows = [list(map(str, range(self.num_columns))), *map(list, self.rows(state, player))]
        lines = [" ".join(cell.upper().rjust(width) for cell in row) for row in rows]
        return "The board from the top, under the columns' numbers; a dot is empty:\n" + "\n".join(lines)

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        return f"drop {self.roles[player]} into column {action}"


class Hex(Board):
    """Hex with OpenSpiel's names of cells: a letter for the column, a number for the row from the top."""

    roles = ("x", "o")
    _PLAIN = str.maketrans(
        "yzXpqO", "xxxooo"
    )  # string_rep=explicit also tells which edge a stone is linked to

    def __init__(self, game: pyspiel.Game) -> None:
        super().__init__(game)
        sizes = game.get_parameters()
        self.swap = sizes["swap"]
        self.rules = (
            "Hex. The players place one stone in turn on an empty cell; stones never move. Each row of "
            "the board is shifted half a cell to the right of the one above, so b2 touches b1, c1, a2, "
            "c2, a3, and b3. x wins with a chain of touching stones from the top row to the bottom row, o "
            "with one from the left column to the right column. There is no draw."
        )
        if self.swap:
            self.rules += " On the first move of o, to swap takes the stone of x over, mirrored."

    def rows(self, state: pyspiel.State, player: int) -> list[str]:
        rows = state.observation_string(player).translate(self._PLAIN).split("\n")
        return [row.replace(" ", "") for row in rows]

    def compact(self, state: pyspiel.State, player: int) -> str:
        rows = self.rows(state, player)
        if len(rows) * len(rows[0]) <= 10:
            ids = iter(range(10))
            numbered = [[(str(next(ids)), mark) for mark in row] for row in rows]
            rows = ["".join(empty if mark == "." else mark for empty, mark in row) for row in numbered]
        return f"{self.marks[player]}:\n" + "\n".join(rows) + "\n?"

    def full(self, state: pyspiel.State, player: int) -> str:
        rows = spaced(self.rows(state, player))
        width = len(str(len(rows)))
        letters = " ".join(chr(ord("a") + column) for column in range((len(rows[0]) + 1) // 2))
        lines = [f"{at + 1:>{width + at}} {row}" for at, row in enumerate(rows)]
        return "The board; a dot is empty:\n" + "\n".join([" " * width + " " + letters, *lines])

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        name = state.action_to_string(player, action)
        return "swap" if name == "swap" else f"place {self.roles[player]} on {name}"


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

    def full(self, state: pyspiel.State, player: int) -> str:
        rows = self.rows(state, player)
        lines = [f"{at + 1} {row}" for at, row in enumerate(spaced(rows))]
        discs = "".join(rows)
        counts = f"Discs: black (x) {discs.count('x')}, white (o) {discs.count('o')}."
        return "\n".join(["The board; a dot is empty:", "  a b c d e f g h", *lines, counts])

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        name = state.action_to_string(player, action)
        return "pass" if name == "pass" else f"place {self.marks[player]} on {name}"


class Breakthrough(Board):
    """Breakthrough with pieces b (black, from the top down) and w (white, from the bottom up)."""

    roles = ("black", "white")
    marks = "bw"

    def __init__(self, game: pyspiel.Game) -> None:
        super().__init__(game)
        sizes = game.get_parameters()
        self.rules = (
            f"Breakthrough on {sizes['rows']} rows and {sizes['columns']} columns. Black (b) starts at the "
            "top and moves down, white (w) starts at the bottom and moves up; black begins. A piece goes "
            "one row forward, straight or diagonally, to an empty cell; diagonally it may also capture. "
            "Who reaches the far row or captures every piece of the other wins."
        )

    def rows(self, state: pyspiel.State, player: int) -> list[str]:
        return [row[1:] for row in super().rows(state, player)[:-1]]

    def full(self, state: pyspiel.State, player: int) -> str:
        return "The board; a dot is empty:\n" + lettered(self.rows(state, player))

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        name = state.action_to_string(player, action)
        start, end = (
            f"{name[at]}{ord(name[at + 1]) - ord('0')}" for at in (0, 2)
        )  # OpenSpiel's row 10 is ':'
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

    def full(self, state: pyspiel.State, player: int) -> str:
        return "The board; a dot is empty:\n" + lettered(self.rows(state, player))

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        start, end = re.findall(r"[^\d]\d+", state.action_to_string(player, action))
        return f"capture from {start} to {end}"


class DotsAndBoxes(Board):
    """Dots and boxes with OpenSpiel's numbers of lines: horizontal ones row by row, then vertical ones."""

    roles = ("A", "B")
    marks = "AB"

    def __init__(self, game: pyspiel.Game) -> None:
        super().__init__(game)
        sizes = game.get_parameters()
        self.num_rows, self.num_columns = sizes["num_rows"], sizes["num_cols"]
        self.num_across = (self.num_rows + 1) * self.num_columns
        self.rules = (
            f"Dots and boxes with {self.num_rows} rows and {self.num_columns} columns of boxes. A and B "
            "draw one line in turn between two neighbouring dots; A begins. Who draws the fourth side of "
            "a box owns it and must draw again. When all lines are drawn, the player with more boxes wins."
        )

    def cells(self, state: pyspiel.State, player: int) -> list[list[str]]:
        """Return a grid of dots, lines and boxes: '+', '-', '|', an owner, ' ', or an undrawn line's id."""
        lines = state.observation_string(player).split("\n")
        grid = []
        for at in range(2 * self.num_rows + 1):
            row = []
            for column in range(2 * self.num_columns + 1):
                sign = lines[at][2 * column]  # OpenSpiel draws four characters a box
                if at % 2 == column % 2:
                    row.append("+" if at % 2 == 0 else {"1": "A", "2": "B"}.get(sign, " "))
                else:
                    row.append(
                        {"─": "-", "│": "|"}.get(
                            sign, str(self.line(at // 2, column // 2, across=at % 2 == 0))
                        )
                    )
            grid.append(row)
        return grid

    def line(self, row: int, column: int, *, across: bool) -> int:
        return (
            row * self.num_columns + column
            if across
            else self.num_across + row * (self.num_columns + 1) + column
        )

    def compact(self, state: pyspiel.State, player: int) -> str:
        grid = self.cells(state, player)
        rows = ["".join(cell if len(cell) == 1 else "." for cell in row) for row in grid]
        if self.num_across + self.num_rows * (self.num_columns + 1) > 10:
            rows = [re.sub(r"\d", ".", row) for row in rows]
        return f"{self.marks[player]}:\n" + "\n".join(rows) + "\n?"

    def full(self, state: pyspiel.State, player: int) -> str:
        grid = self.cells(state, player)
        # Dots, and the upright lines below them, are as wide as the longest id; lines across are wider.
        width = len(str(self.num_across + self.num_rows * (self.num_columns + 1) - 1))
        lines = []
        for row in grid:
            widths = [width if column % 2 == 0 else width + 2 for column in range(len(row))]
            drawn = [
                cell * size if cell == "-" else cell.center(size)
                for cell, size in zip(row, widths, strict=True)
            ]
            lines.append(re.sub(r"\+ (?=-)", "+-", "".join(drawn).rstrip()))
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

    def __init__(self, game: pyspiel.Game) -> None:
        super().__init__(game)
        end = "loses" if game.get_parameters()["is_misere"] else "wins"
        self.rules = (
            "Nim. The players take objects in turn: any number from one pile, at least one. The player "
            f"who takes the last object of all {end}."
        )

    def piles(self, state: pyspiel.State, player: int) -> list[str]:
        return str(state.observation_string(player).partition(": ")[2]).split()

    def compact(self, state: pyspiel.State, player: int) -> str:
        return f"P{player} " + " ".join(self.piles(state, player)) + "?"

    def full(self, state: pyspiel.State, player: int) -> str:
        piles = enumerate(self.piles(state, player))
        return "\n".join(["The piles:", *(f"pile {at + 1}: {size}" for at, size in piles)])

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        pile, count = re.findall(r"\d+", state.action_to_string(player, action))
        return f"take {count} from pile {pile}"
