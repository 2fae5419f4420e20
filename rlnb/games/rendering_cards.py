"""Texts of the games with cards and dice: Kuhn and Leduc poker, liar's dice, goofspiel."""

import re

import pyspiel

from rlnb.games.rendering import Rendering, tell

KUHN_CARDS = {"0": "J", "1": "Q", "2": "K"}
CARD_NAMES = {"J": "Jack", "Q": "Queen", "K": "King"}


class KuhnPoker(Rendering):
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


class LeducPoker(Rendering):
    """Leduc poker, whose information state has the own card, the public card, and both rounds' moves."""

    roles = ("first player", "second player")
    rules = (
        "Leduc poker. The deck has six cards: two Jacks, two Queens, two Kings. Each player pays 1 chip "
        "into the pot and gets one card that the other does not see. After the first round of betting one "
        "public card is turned up, then there is a second round. A raise adds 2 chips in the first round "
        "and 4 in the second, with at most two raises a round. At the end a player whose card pairs the "
        "public card wins the pot; otherwise the higher card does, and equal cards share it."
    )

    usual = {"starting_player": 0, "suit_isomorphism": False}

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
        lines = [
            f"Your card: {self.named(known[1])}.",
            f"Public card: {self.named(known[6])}." if known[6] else "Public card: not turned up yet.",
            f"Round {known[2]} of 2. The pot holds {known[3]} chips; you paid {100 - money[player]} of them, "
            f"your opponent {100 - money[1 - player]}.",
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


class LiarsDice(Rendering):
    """Liar's dice, whose information state is the own die and all bids, quantity first: "4 1-5 2-3"."""

    roles = ("first player", "second player")
    rules = (
        "Liar's dice. Each player rolls one die with {dice_sides} sides and hides the result. A bid says "
        "that at least so many of all dice show a face; a {dice_sides} counts as every face. Each bid must "
        "be higher than the last: more dice, or as many with a higher face. Instead of bidding a player may "
        "call the other a liar: if the last bid is true, its bidder wins, otherwise the caller."
    )
    usual = {"numdice": 1, "bidding_rule": "reset-face"}

    def compact(self, state: pyspiel.State, player: int) -> str:
        return f"P{player} {state.information_state_string(player)}?"

    def full(self, state: pyspiel.State, player: int) -> str:
        die, *bids = state.information_state_string(player).split()
        told = [f"{tell(player, at)} bid {self.bid(bid)}" for at, bid in enumerate(bids)]
        return f"Your dice: {die}.\nBids so far: {'; '.join(told) or 'none'}."

    def bid(self, bid: str) -> str:
        quantity, _, face = bid.partition("-")
        return f"{quantity} {'die' if quantity == '1' else 'dice'} showing {face}"

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        name = state.action_to_string(player, action)
        return "call liar" if name == "Liar" else f"bid {self.bid(name)}"


class Goofspiel(Rendering):
    """Goofspiel, in which both bid at once: the second to be asked is not told the first bid."""

    roles = ("player 0", "player 1")
    rules = (
        "Goofspiel. Each player holds the cards 1 to {num_cards}. The prizes 1 to {num_cards} come up one a "
        "round, in random order. Both bid one card for the prize at the same time, without seeing the "
        "other's; each card can be bid once. The higher bid takes the prize's points; equal bids take "
        "nothing. Then both cards are shown. At the end the player with more points wins."
    )
    usual = {"imp_info": False, "num_turns": -1, "points_order": "random"}

    def known(self, state: pyspiel.State, player: int) -> dict[str, list[str]]:
        """Return the information state by lines: {'Points': ['0', '4'], 'P0 hand': ['1', '3']}."""
        lines = (line.partition(":") for line in state.information_state_string(player).split("\n"))
        return {key: rest.split() for key, _, rest in lines}

    def rounds(self, known: dict[str, list[str]], player: int) -> list[tuple[str, str]]:
        """Return each prize that was bid for, and "won", "lost" or "tied"."""
        words = {str(player): "won", str(1 - player): "lost"}
        results = [words.get(winner, "tied") for winner in known["Win sequence"]]
        return list(zip(known["Point card sequence"], results, strict=False))  # the last prize is open

    def compact(self, state: pyspiel.State, player: int) -> str:
        known = self.known(state, player)
        between = "" if self.sizes["num_cards"] <= 9 else ","
        hands = [between.join(known[f"P{seat} hand"]) for seat in (player, 1 - player)]
        rounds = [f"{prize}{result[0]}" for prize, result in self.rounds(known, player)]
        return f"P{player} " + " ".join(["/".join(hands), *rounds, known["Point card sequence"][-1]]) + "?"

    def full(self, state: pyspiel.State, player: int) -> str:
        known = self.known(state, player)
        prizes, points = known["Point card sequence"], known["Points"]
        lines = [
            f"Round {len(prizes)}. The prize is {prizes[-1]}. Points: you {points[player]}, "
            f"your opponent {points[1 - player]}.",
            f"Your hand: {', '.join(known[f'P{player} hand'])}.",
            f"Your opponent's hand: {', '.join(known[f'P{1 - player} hand'])}.",
        ]
        told = [f"prize {prize}: you {result}" for prize, result in self.rounds(known, player)]
        return "\n".join([*lines, f"Rounds so far: {'; '.join(told) or 'none'}."])

    def words(self, state: pyspiel.State, player: int, action: int) -> str:
        return f"bid {action + 1}"
