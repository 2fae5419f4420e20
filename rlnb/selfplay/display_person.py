"""A person plays against the model, with buttons, in a notebook."""

import random
from collections.abc import Sequence
from html import escape

import ipywidgets as widgets

from rlnb.display.panel import Panel
from rlnb.display.replay import Frame, likeliest
from rlnb.games.text_games import TextGame
from rlnb.selfplay.display_games import SYMBOLS, grid_rows, make_frames, marked_cell
from rlnb.selfplay.rollouts import LEARNER, Episode, GameInProgress, GameRules, Player

PERSON = "person"
CELL = widgets.Layout(width="3rem", height="3rem", margin="2px")
# Occupied cells are disabled, which would make their marks pale.
CELL_STYLE = "<style>.rlnb-cell:disabled{opacity:1!important}</style>"


class PlayAgainst(Panel):
    """A game of a person against the model; display it, then click.

    Deals and the model's samples come from `seed` and the number of the game, so the same clicks get the same
    answers. The person sees what its seat may see. The model's probabilities are shown after each of its
    moves, but in games with hidden cards only at the end, since they would give its card away.

    buttons: {action: button} of the legal moves, by OpenSpiel's ids; on a board, the cells that they mark.
    """

    def __init__(
        self, game: TextGame, player: Player, seed: int = 0, *, seat: int = 0, rules: GameRules | None = None
    ) -> None:
        self.game, self.player, self.seed, self.rules = game, player, seed, rules or GameRules()
        self.num_games = 0
        self.seat_choice = widgets.ToggleButtons(
            options=list(zip(game.roles, (0, 1), strict=True)), value=seat
        )
        self.new_game = widgets.Button(description="New game")
        self.status, self.view, self.model_moves = widgets.Label(), widgets.HTML(), widgets.HTML()
        self.choices = widgets.Box(layout=widgets.Layout(flex_flow="row wrap"))
        self.buttons: dict[int, widgets.Button] = {}
        rules = widgets.HTML(CELL_STYLE + escape(game.rules))
        top = widgets.HBox([widgets.Label("You are"), self.seat_choice, self.new_game])
        words = f"{game.name} against the model, by buttons that need a running notebook."
        super().__init__([rules, top, self.status, self.view, self.choices, self.model_moves], words)
        self.new_game.on_click(lambda _: self.start())
        self.seat_choice.observe(lambda _: self.start(), names="value")
        self.start()

    def start(self) -> None:
        """Start a new game in the chosen seat."""
        self.num_games += 1
        self.seat = int(self.seat_choice.value)
        players = (PERSON, LEARNER) if self.seat == 0 else (LEARNER, PERSON)
        seed = random.Random(f"{self.seed} {self.num_games}").getrandbits(48)
        episode = Episode(self.game, players, seed, opening_seed=seed)
        self.playing = GameInProgress.start(episode, self.rules)
        self._advance()

    def choose(self, action: int) -> None:
        """Play a move of the person. Raises ValueError if it is illegal or the game is over."""
        if self.playing.is_over:
            raise ValueError("the game is over; start a new one")
        self.playing.move(action)
        self.playing.deal(self.playing.rng)
        self.buttons = {}  # the old ones: another click meant the position before
        self.status.value = "The model is thinking …"
        self._advance()

    def _advance(self) -> None:
        """Let the model move until the person has to, or the game is over."""
        playing = self.playing
        while not playing.is_over and playing.seat != self.seat:
            playing.play(self.player.answer([playing.request()])[0])
            playing.deal(playing.rng)
        played, state = playing.finish(), playing.state
        frames = make_frames(played, self.game)
        if playing.is_over:
            result = {0: "lost", 0.5: "drew", 1: "won"}[played.score(self.seat)]
            why = frames[-1].note.capitalize()  # of a forfeit
            self.status.value = f"You {result} ({played.returns[self.seat]:+g}). {why}".rstrip()
            position = str(state) if not self.game.has_hidden_information else frames[-1].text
        else:
            self.status.value = "Your move."
            position = self.game.full(state, self.seat)
        words = {} if playing.is_over else self.game.legal_words(state)
        self.buttons = {action: self._button(action, text) for action, text in words.items()}
        rows = grid_rows(self.game, state)
        self.view.value = "" if rows else f"<pre style='margin:0'>{escape(position)}</pre>"
        self.choices.children = [self._board(rows)] if rows else list(self.buttons.values())
        shown = [frame for frame in frames[:-1] if frame.mover == 1 - self.seat]
        if not self.game.has_hidden_information:
            shown = shown[-1:]
        elif not playing.is_over:
            shown = []
        self.model_moves.value = "The model's move:" * bool(shown) + "".join(map(write_move, shown))

    def _board(self, rows: Sequence[str]) -> widgets.GridBox:
        """Return a board whose free cells are the buttons of the moves that mark them."""
        actions = {marked_cell(self.game, rows, action): action for action in self.buttons}
        cells = []
        for cell, mark in enumerate("".join(rows)):
            text, _, colour = SYMBOLS[mark]
            button = self.buttons[actions[cell]] if cell in actions else widgets.Button(disabled=True)
            button.description, button.layout = text or " ", CELL
            button.style = {"font_size": "1.5rem", "font_weight": "bold", "text_color": colour or None}
            button.add_class("rlnb-cell")
            cells.append(button)
        layout = widgets.Layout(grid_template_columns=f"repeat({len(rows[0])}, max-content)")
        return widgets.GridBox(cells, layout=layout)

    def _button(self, action: int, text: str) -> widgets.Button:
        button = widgets.Button(description=text, tooltip=text, layout=widgets.Layout(width="auto"))
        button.on_click(lambda _: self.choose(action) if self.buttons.get(action) is button else None)
        return button


def write_move(frame: Frame) -> str:
    """Return as HTML a position in words and its legal actions, each with a bar as long as it is likely."""
    rows = ""
    for bar in likeliest(frame.bars):
        share = bar.probability or 0.0
        colour = "#2f7fd1" if bar.is_chosen else "#999999"
        strip = f"<div style='width:{200 * share:.1f}px;height:0.7em;background:{colour}'></div>"
        cells = (">" if bar.is_chosen else "", bar.words, f"{share:.1%}" * (bar.probability is not None))
        mark, words, percent = (f"<td style='text-align:left'>{escape(cell)}</td>" for cell in cells)
        rows += f"<tr>{mark}{words}<td>{strip}</td>{percent}</tr>"
    return f"<pre style='margin:0'>{escape(frame.text)}</pre><table>{rows}</table>"
