"""A person plays against the model, with buttons, in a notebook."""

import random
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, cast

import ipywidgets as widgets
from IPython.display import display

from rlnb.display.replay import Frame, likeliest
from rlnb.display.tables import Table, as_percent
from rlnb.games.text_games import TextGame
from rlnb.selfplay.acting import ConstrainedPlayer
from rlnb.selfplay.display_games import SYMBOLS, grid_rows, make_frames, marked_cell
from rlnb.selfplay.rollouts import Problem, Request

PERSON, MODEL = "person", "model"
CELL = widgets.Layout(width="3rem", height="3rem", margin="2px")
# Occupied cells are disabled, which would make their marks pale.
CELL_STYLE = "<style>.rlnb-cell:disabled{opacity:1}</style>"


class PlayPanel(widgets.VBox):
    """A box that a saved notebook shows as a sentence."""

    def __repr__(self) -> str:
        return "Buttons to play against the model: they need a running notebook."


class PlayAgainst:
    """A game of a person against the model; display it, then click.

    Deals and the model's samples come from `seed` and the number of the game, so the same clicks get the same
    answers. The person sees what its seat may see. The model's probabilities are shown after each of its
    moves, but in games with hidden cards only at the end, since they would give its card away.

    buttons: {action: button} of the legal moves, by OpenSpiel's ids; on a board, the cells that they mark.
    record: the game so far, as a line of games.jsonl.
    """

    def __init__(self, game: TextGame, player: ConstrainedPlayer, seed: int = 0, *, seat: int = 0) -> None:
        self.game, self.player, self.seed = game, player, seed
        self.num_games = 0
        self.seat_choice = widgets.ToggleButtons(
            options=list(zip(game.roles, (0, 1), strict=True)), value=seat
        )
        self.new_game = widgets.Button(description="New game")
        self.status, self.view, self.model_moves = widgets.Label(), widgets.HTML(), widgets.HTML()
        self.choices = widgets.Box(layout=widgets.Layout(flex_flow="row wrap"))
        self.buttons: dict[int, widgets.Button] = {}
        rules = widgets.HTML(CELL_STYLE + escape(game.rendering.rules))
        top = widgets.HBox([widgets.Label("You are"), self.seat_choice, self.new_game])
        self.widget = PlayPanel([rules, top, self.status, self.view, self.choices, self.model_moves])
        self.new_game.on_click(lambda _: self.start())
        self.seat_choice.observe(lambda _: self.start(), names="value")
        self.start()

    def start(self) -> None:
        """Start a new game in the chosen seat."""
        self.num_games += 1
        self.deals = random.Random(f"deals {self.seed} {self.num_games}")
        self.draws = random.Random(f"draws {self.seed} {self.num_games}")
        self.seat = int(self.seat_choice.value)
        self.state = self.game.new_state()
        players = [MODEL, MODEL]
        players[self.seat] = PERSON
        self.record: dict[str, Any] = {
            "game": self.game.name, "players": players, "seed": self.seed, "history": [],
            "returns": [0.0, 0.0], "forfeit": None, "moves": [], "turns": [],
        }  # fmt: skip
        self._advance()

    @property
    def is_over(self) -> bool:
        return bool(self.state.is_terminal())

    def choose(self, action: int) -> None:
        """Play a move of the person. Raises ValueError if it is illegal or the game is over."""
        if self.is_over:
            raise ValueError("the game is over; start a new one")
        self._apply(action)
        self.buttons = {}  # the old ones: another click meant the position before
        self.status.value = "The model is thinking …"
        self._advance()

    def _apply(self, action: int) -> None:
        seat = self.state.current_player()
        self.game.apply(self.state, action)
        self.record["moves"].append({"seat": seat, "action": action, "is_opening": False})

    def _advance(self) -> None:
        """Let chance and the model move until the person has to, or the game is over."""
        while not self.is_over:
            if self.state.is_chance_node():
                actions, shares = zip(*self.state.chance_outcomes(), strict=True)
                self.state.apply_action(self.deals.choices(actions, shares)[0])
            elif self.state.current_player() == self.seat:
                break
            else:
                self._move_model()
        self.record["history"] = list(self.state.history())
        if self.state.is_terminal():
            self.record["returns"] = list(map(float, self.state.returns()))
        self._draw()

    def _move_model(self) -> None:
        seat, state, ply = self.state.current_player(), self.state, len(self.record["moves"])
        prompt, legal = self.game.prompt(state), tuple(state.legal_actions())
        shares = self.player.probabilities([prompt], [legal])[0]

        def parse(text: str, is_cut: bool) -> tuple[int | None, Problem | None]:
            answer = self.game.parse(text, state, is_cut=is_cut)
            return answer.action, answer.problem

        turn = self.player.answer([Request(prompt, legal, ply, self.draws, parse)])[0]
        self.record["turns"].append(
            {
                "seat": seat, "ply": ply, "text": turn.text, "action": turn.action, "problem": turn.problem,
                "legal_actions": list(legal), "probabilities": list(map(float, shares)),
            }
        )  # fmt: skip
        self._apply(cast(int, turn.action))  # a constrained answer is always a legal move

    def _draw(self) -> None:
        frames = make_frames(self.record, self.game)
        self.status.value = self._status()
        words = {} if self.is_over else self.game.legal_words(self.state)
        rows = grid_rows(self.game, self.state)
        if rows:
            actions = {marked_cell(rows, action): action for action in words}
            cells = [
                self._cell_button(mark, actions.get(cell), words) for cell, mark in enumerate("".join(rows))
            ]
            layout = widgets.Layout(grid_template_columns=f"repeat({len(rows[0])}, max-content)")
            self.choices.children = [widgets.GridBox(cells, layout=layout)]
            self.buttons = {action: cells[cell] for cell, action in actions.items() if cell is not None}
        else:
            self.view.value = f"<pre style='margin:0'>{escape(self._describe_view(frames[-1]))}</pre>"
            self.buttons = {action: self._button(action, text) for action, text in words.items()}
            self.choices.children = list(self.buttons.values())
        self.model_moves.value = self._model_moves(frames)

    def _status(self) -> str:
        if not self.is_over:
            return "Your move."
        won, lost = self.record["returns"][self.seat], self.record["returns"][1 - self.seat]
        if won == lost:
            return "A draw."
        return f"You {'won' if won > lost else 'lost'} ({won:+g})."

    def _describe_view(self, last: Frame) -> str:
        """Return the position as the person may know it, without hidden cards until the end."""
        if self.is_over:
            return last.text
        rendering = self.game.rendering
        lines = (rendering.last_moves(self.state, self.seat), rendering.full(self.state, self.seat))
        return "\n".join(filter(None, lines))

    def _cell_button(self, mark: str, action: int | None, words: Mapping[int, str]) -> widgets.Button:
        """Return the button of a cell, which can be clicked where a move would mark it."""
        text, _, colour = SYMBOLS[mark]
        button = self._button(action, text or " ")
        button.tooltip = "" if action is None else words[action]
        button.layout, button.disabled = CELL, action is None
        button.style = {"font_size": "1.5rem", "font_weight": "bold", "text_color": colour or None}
        button.add_class("rlnb-cell")
        return button

    def _button(self, action: int | None, text: str) -> widgets.Button:
        button = widgets.Button(description=text, tooltip=text, layout=widgets.Layout(width="auto"))

        def play(_: widgets.Button) -> None:
            if action is not None and self.buttons.get(action) is button:
                self.choose(action)

        button.on_click(play)
        return button

    def _model_moves(self, frames: Sequence[Frame]) -> str:
        """Return a table of the model's last move; with hidden cards of all its moves, at the end."""
        shown = [frame for frame in frames if frame.mover == 1 - self.seat and frame.bars]
        if not self.game.has_hidden_information:
            shown = shown[-1:]
        elif not self.is_over:
            shown = []
        rows = [
            (frame.num_moves + 1, bar.words, "█" * round(20 * (bar.probability or 0)))
            + (as_percent(bar.probability), "played" if bar.is_chosen else "")
            for frame in shown
            for bar in likeliest(frame.bars)
        ]
        return Table(["move", "of the model", "", "probability", ""], rows)._repr_html_() if rows else ""

    def _ipython_display_(self) -> None:
        display(self.widget)
