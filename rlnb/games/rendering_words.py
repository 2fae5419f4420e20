"""Games in words of their own, and rules of others; see `WORDED` and `RULES`."""

import re

import pyspiel

from rlnb.games.rendering import TextGame

KUHN_CARDS = {"0": "J", "1": "Q", "2": "K"}
CARD_NAMES = {"J": "Jack", "Q": "Queen", "K": "King"}


def tell(player: int, mover: int) -> str:
    """Return who moved, as `player` is told it."""
    return "you" if mover % 2 == player else "your opponent"


def board_rows(state: pyspiel.State) -> list[str]:
    """Return the cells of tic-tac-toe or connect four as "x", "o" and ".", row by row from the top."""
    return [row for row in state.observation_string(0).split("\n") if row]


class TicTacToe(TextGame):
    """Tic-tac-toe, in which an empty cell shows its action id."""

    roles = ("X", "O")
    rules = (
        "Tic-tac-toe on a board of 3 rows and 3 columns. X and O place one mark in turn on an empty cell; X "
        "begins. Three own marks in one row, column, or diagonal win. A full board without them is a draw."
    )

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


class ConnectFour(TextGame):
    """Connect four, in which the cell where a disc would land shows its action id: its column, from 0."""

    roles = ("X", "O")
    rules = (
        "Connect four on {rows} rows and {columns} columns, numbered from 0 on the left. X and O drop one "
        "disc in turn into a column that is not full; it falls to the lowest empty cell. {x_in_row} own "
        "discs in a line (across, down, or diagonal) win. A full board is a draw."
    )

    def compact(self, state: pyspiel.State, player: int) -> str:
        rows = board_rows(state)
        lines = []
        for row, below in zip(rows, [*rows[1:], "#" * len(rows[0])], strict=True):
            landing = [mark == "." and under != "." for mark, under in zip(row, below, strict=True)]
            if any(landing) or row.strip("."):
                ids = map(str, range(len(row))) if len(row) <= 10 else row
                cells = zip(row, landing, ids, strict=True)
                lines.append("".join(column if lands else mark for mark, lands, column in cells))
        return "\n".join([f"{'xo'[player]}:", *lines, "?"])

    def full(self, state: pyspiel.State, player: int) -> str:
        rows = board_rows(state)
        numbers = [str(column) for column in range(len(rows[0]))]
        width = len(numbers[-1])
        lines = [" ".join(cell.upper().rjust(width) for cell in row) for row in [numbers, *rows]]
        return "\n".join(["The board from the top, under the columns' numbers; a dot is empty:", *lines])

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        return f"drop {self.roles[player]} into column {action}"


class Nim(TextGame):
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


class KuhnPoker(TextGame):
    """Kuhn poker, whose information state is the card and the moves: "1pb"."""

    roles = ("first player", "second player")
    rules = (
        "Kuhn poker. The deck has three cards: Jack, Queen, King; the King is the highest. Each player "
        "pays 1 chip into the pot and gets one card that the other does not see. The first player passes "
        "or bets 1 chip, then the second does. After a bet the other player must answer: to bet is to "
        "call it, to pass is to give up the pot. If the second player bets after a pass, the first "
        "answers. If both passed or both bet, the higher card wins the pot."
    )

    def compact(self, state: pyspiel.State, player: int) -> str:
        known = state.information_state_string(player)
        return f"P{player} {KUHN_CARDS[known[0]]} {known[1:]}?"

    def full(self, state: pyspiel.State, player: int) -> str:
        known = state.information_state_string(player)
        told = [
            f"{tell(player, at)} {'passed' if move == 'p' else 'bet'}" for at, move in enumerate(known[1:])
        ]
        moves = ", ".join(told) or "nobody has moved yet"
        return f"Your card: {CARD_NAMES[KUHN_CARDS[known[0]]]}. {moves[0].upper()}{moves[1:]}."

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        return ("pass", "bet")[action]


_LEDUC_LETTERS = str.maketrans("012", "fcr")
_LEDUC = re.compile(
    r"\[Private: (\d+)\]\[Round (\d)\]\[Player: \d\]\[Pot: (\d+)\]\[Money: (\d+) (\d+)\]"
    r"(?:\[Public: (\d+)\])?\[Round1: ([\d ]*)\]\[Round2: ([\d ]*)\]"
)


class LeducPoker(TextGame):
    """Leduc poker, whose information state has the own card, the public card, and both rounds' moves."""

    roles = ("first player", "second player")
    rules = (
        "Leduc poker. The deck has six cards: two Jacks, two Queens, two Kings. Each player pays 1 chip "
        "into the pot and gets one card that the other does not see. After the first round of betting one "
        "public card is turned up, then there is a second round. A raise adds 2 chips in the first round "
        "and 4 in the second, with at most two raises a round. At the end a player whose card pairs the "
        "public card wins the pot; otherwise the higher card does, and equal cards share it."
    )

    usual = {"starting_player": 0, "suit_isomorphism": False, "action_mapping": False}

    def known(self, state: pyspiel.State, player: int) -> re.Match[str]:
        """Return groups 1 to 8: own card, round, pot, both players' money, public card, both rounds."""
        known = _LEDUC.search(state.information_state_string(player))
        if known is None:
            raise ValueError("This version of OpenSpiel words Leduc poker in another way; 2.0.2 is known.")
        return known

    def card(self, card_id: str) -> str:
        """Return 'Ka': rank and suit."""
        return "JQK"[int(card_id) // 2] + "ab"[int(card_id) % 2]

    def compact(self, state: pyspiel.State, player: int) -> str:
        known = self.known(state, player)
        first, second = (moves.replace(" ", "").translate(_LEDUC_LETTERS) for moves in known.group(7, 8))
        public = f" {self.card(known[6])} {second}" if known[6] else ""
        return f"P{player} {self.card(known[1])} {first}{public}?"

    def full(self, state: pyspiel.State, player: int) -> str:
        known = self.known(state, player)
        money = (int(known[4]), int(known[5]))
        pot = (
            f"The pot holds {known[3]} chips; you paid {100 - money[player]} of them, "
            f"your opponent {100 - money[1 - player]}."
        )
        if state.is_terminal():  # the pot is empty then, and the money says who has it
            pot = f"The pot is paid out; your return is {state.returns()[player]:+g}."
        lines = [
            f"Your card: {self.named(known[1])}.",
            f"Public card: {self.named(known[6])}." if known[6] else "Public card: not turned up yet.",
            f"Round {known[2]} of 2. {pot}",
            "First round: " + self.told(known[7], player),
        ]
        if known[6]:
            lines.append("Second round: " + self.told(known[8], player))
        return "\n".join(lines)

    def named(self, card_id: str) -> str:
        card = self.card(card_id)
        return f"{CARD_NAMES[card[0]]} of suit {card[1]}"

    def told(self, moves: str, player: int) -> str:
        """Return 'you called, your opponent raised.'"""
        told, raised = [], False
        for at, move in enumerate(moves.split()):
            verb = {"0": "folded", "1": "called" if raised else "checked", "2": "raised"}[move]
            raised = raised or move == "2"
            told.append(f"{tell(player, at)} {verb}")
        return (", ".join(told) or "nobody has moved yet") + "."

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        if action != 1:
            return "fold" if action == 0 else "raise"
        known = self.known(state, player)
        return "call" if "2" in known[8 if known[6] else 7] else "check"


# Another game is worded by a class here. All others, and these with unusual rules, get OpenSpiel's strings.
WORDED: dict[str, type[TextGame]] = {
    "connect_four": ConnectFour, "kuhn_poker": KuhnPoker, "leduc_poker": LeducPoker, "nim": Nim,
    "tic_tac_toe": TicTacToe,
}  # fmt: skip
# Told above OpenSpiel's strings, with the game's parameters in braces.
RULES = {
    "breakthrough": (
        "Breakthrough. Player 0 has the pieces b, which start at the top and move down; player 1 has w, "
        "which move up. A piece goes one row forward, straight or diagonally, to an empty cell; "
        "diagonally it may also capture. Who reaches the far row or captures every piece of the other "
        "wins."
    ),
    "clobber": (
        "Clobber. Player 0 has the stones o, player 1 the stones x. A move takes one own stone onto a "
        "stone of the other in the next cell (up, down, left, or right), which is removed. Who cannot "
        "move loses."
    ),
    "dots_and_boxes": (
        "Dots and boxes. The players draw one line in turn between two neighbouring dots: horizontal (h) "
        "or vertical (v), with row and column counted from 0 at the top left. Who draws the fourth side "
        "of a box owns it (1: player 0, 2: player 1) and must draw again. The player with more boxes "
        "wins."
    ),
    "goofspiel": (
        "Goofspiel. Each player holds the cards 1 to {num_cards}. The prizes 1 to {num_cards} come up one "
        "a round. Both bid one card for the prize at the same time; each card can be bid once. The higher "
        "bid takes the prize's points; equal bids take nothing. At the end the player with more points "
        "wins."
    ),
    "hex": (
        "Hex. The players place one stone in turn on an empty cell, player 0 x and player 1 o. A cell is "
        "named by its column (a letter) and its row from the top; b2 touches b1, c1, a2, c2, a3, and b3. "
        "Player 0 wins with a chain of touching stones from top to bottom, player 1 with one from left to "
        "right."
    ),
    "liars_dice": (
        "Liar's dice. Each player rolls {numdice} dice with {dice_sides} sides and hides the result. A "
        "bid such as 2-3 says that at least so many of all dice, here 2, show the face behind it, here 3; "
        "a {dice_sides} counts as every face. Each bid must be higher than the last. Instead of bidding a "
        "player may call the other a liar: if the last bid is true, its bidder wins, otherwise the "
        "caller."
    ),
    "othello": (
        "Othello. Player 0 (black, x) and player 1 (white, o) place one disc in turn. A disc must enclose "
        "one or more discs of the other colour in a straight line between itself and another disc of its "
        "own; all that are so enclosed turn over. Who cannot do that must pass. When neither can, the "
        "colour with more discs wins."
    ),
}
