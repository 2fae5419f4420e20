"""A person plays against the model, with buttons, in a notebook."""

import random
from collections.abc import Sequence
from html import escape
from typing import Protocol

import ipywidgets as widgets
import numpy as np
from IPython.display import display

from rlnb.display.replay import Bar, Frame, likeliest
from rlnb.games.text_games import TextGame
from rlnb.selfplay.display_games import GRIDS, GameRecord, grid_rows, make_frames, show_still
from rlnb.selfplay.rollouts import Problem, Request, Turn

PERSON, MODEL = "person", "model"
COLOURS = {"x": "#2f7fd1", "o": "#d9661f"}
CELL = widgets.Layout(width="4rem", height="4rem", margin="2px")
COLUMN = widgets.Layout(width="2.6rem", height="2.6rem", margin="2px")
# Occupied cells are disabled, which would make their marks pale.
CELL_STYLE = "<style>.rlnb-cell:disabled{opacity:1}</style>"
DISC_STYLE = (
    "width:2.6rem;height:2.2rem;padding:0;text-align:center;font-size:1.4rem;font-weight:700;"
    "background:rgba(128,128,128,0.18);color:"
)


class ProbablePlayer(Protocol):
    """A player that also gives the probabilities of the legal actions, such as `ConstrainedPlayer`."""

    def answer(self, requests: Sequence[Request]) -> list[Turn]: ...

    def probabilities(self, prompts: Sequence[str], legal: Sequence[tuple[int, ...]]) -> list[np.ndarray]: ...


class PlayPanel(widgets.VBox):
    """A box that a saved notebook shows as a sentence."""

    def __repr__(self) -> str:
        return "Buttons to play against the model: they need a running notebook."


class PlayAgainst:
    """A game of a person against the model; display it, then click.

    Deals and the model's samples come from `seed` and the number of the game, so the same clicks get the same
    answers. The person sees what its seat may see. The model's probabilities are shown after each of its
    moves, but in games with hidden cards only at the end, since they would give its card away.

    buttons: {action: button} of the person to move, by OpenSpiel's ids; a tic-tac-toe cell or a connect-four
    column that cannot be played is disabled. record: the game so far, as a line of games.jsonl.
    """

    def __init__(self, game: TextGame, player: ProbablePlayer, seed: int = 0, *, seat: int = 0) -> None:
        self.game, self.player, self.seed = game, player, seed
        self.num_games = 0
        names = [
            role if role.endswith("player") else f"{role} ({order})"
            for role, order in zip(game.roles, ("first", "second"), strict=True)
        ]
        self.seat_choice = widgets.ToggleButtons(
            options=list(zip(names, (0, 1), strict=True)), value=seat, tooltips=names
        )
        self.new_game = widgets.Button(description="New game")
        self.status, self.view, self.model_moves = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.choices = widgets.Box(layout=widgets.Layout(flex_flow="row wrap"))
        self.buttons: dict[int, widgets.Button] = {}
        rules = widgets.HTML(
            f"{CELL_STYLE}<div style='max-width:40rem;line-height:1.4'>{escape(game.rendering.rules)}</div>"
        )
        top = widgets.HBox(
            [widgets.Label("You are"), self.seat_choice, self.new_game],
            layout=widgets.Layout(align_items="center", flex_flow="row wrap"),
        )
        body = [self.view, self.choices]
        if game.short_name in GRIDS:
            body.reverse()  # discs are dropped from above
        self.widget = PlayPanel([rules, top, self.status, *body, self.model_moves])
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
        self.moves: list[dict[str, object]] = []
        self.turns: list[dict[str, object]] = []
        self.forfeit: int | None = None
        self._advance()

    @property
    def is_over(self) -> bool:
        return self.forfeit is not None or bool(self.state.is_terminal())

    @property
    def record(self) -> GameRecord:
        least = self.game.game.min_utility()
        returns = [0.0, 0.0]
        if self.forfeit is not None:
            returns[self.forfeit], returns[1 - self.forfeit] = least, -least
        elif self.is_over:
            returns = list(map(float, self.state.returns()))
        players = [MODEL, MODEL]
        players[self.seat] = PERSON
        return {
            "game": self.game.name, "players": players, "seed": self.seed,
            "history": list(self.state.history()), "returns": returns, "forfeit": self.forfeit,
            "moves": self.moves, "turns": self.turns,
        }  # fmt: skip

    def choose(self, action: int) -> None:
        """Play a move of the person. Raises ValueError if it is illegal or the game is over."""
        if self.is_over:
            raise ValueError("the game is over; start a new one")
        self._apply(action)
        for button in self.buttons.values():
            button.disabled = True
        self.status.value = "<b>The model is thinking …</b>"
        self._advance()

    def _apply(self, action: int) -> None:
        seat = self.state.current_player()
        self.game.apply(self.state, action)
        self.moves.append({"seat": seat, "action": action, "is_opening": False})

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
        self._draw()

    def _move_model(self) -> None:
        seat, state = self.state.current_player(), self.state
        prompt, legal = self.game.prompt(state), tuple(state.legal_actions())
        shares = self.player.probabilities([prompt], [legal])[0]

        def parse(text: str) -> tuple[int | None, Problem | None]:
            answer = self.game.parse(text, state)
            return answer.action, answer.problem

        turn = self.player.answer([Request(prompt, legal, len(self.moves), self.draws, parse)])[0]
        self.turns.append(
            {
                "seat": seat, "ply": len(self.moves), "text": turn.text, "action": turn.action,
                "problem": turn.problem, "legal_actions": list(legal), "value": turn.value,
                "probabilities": list(map(float, shares)),
            }
        )  # fmt: skip
        if turn.action is None:
            self.forfeit = seat
        else:
            self._apply(turn.action)

    def _draw(self) -> None:
        frames = make_frames(self.record, self.game)
        self.status.value = f"<b>{escape(self._status(frames[-1]))}</b>"
        if self.game.short_name in GRIDS:
            self._draw_grid(grid_rows(self.game, self.state))
        else:
            self.view.value = f"<pre style='margin:0'>{escape(self._describe_view(frames[-1]))}</pre>"
            words = {} if self.is_over else self.game.legal_words(self.state)
            self.buttons = {action: self._button(action, text, text) for action, text in words.items()}
            self.choices.children = list(self.buttons.values())
        self.model_moves.value = self._model_html(frames)

    def _status(self, last: Frame) -> str:
        if not self.is_over:
            return "Your move."
        won, lost = self.record["returns"][self.seat], self.record["returns"][1 - self.seat]
        if won == lost:
            return "A draw."
        how = f": {last.heading}" if self.forfeit is not None else f" ({won:+g})"
        return f"You {'won' if won > lost else 'lost'}{how}."

    def _describe_view(self, last: Frame) -> str:
        """Return the position as the person may know it, without hidden cards until the end."""
        if self.is_over:
            return last.text
        rendering = self.game.rendering
        lines = (rendering.last_moves(self.state, self.seat), rendering.full(self.state, self.seat))
        return "\n".join(filter(None, lines))

    def _draw_grid(self, grid: Sequence[str]) -> None:
        """Draw tic-tac-toe as nine buttons, and connect four below a button for each column."""
        legal = [] if self.is_over else self.state.legal_actions()
        is_small = self.game.short_name == "tic_tac_toe"
        num_columns, marks = len(grid[0]), "".join(grid)
        self.buttons = {}  # new ones: a click that waited meant the position before
        for action in range(9 if is_small else num_columns):
            row, column = divmod(action, num_columns)
            place = f"row {row + 1}, column {column + 1}" if is_small else f"column {action + 1}"
            text = marks[action].upper().replace(".", " ") if is_small else str(action)
            button = self._button(action, text, place, CELL if is_small else COLUMN)
            button.disabled = action not in legal
            if is_small:
                button.add_class("rlnb-cell")
                button.style = {"font_size": "1.8rem", "font_weight": "bold"}
                button.style.text_color = COLOURS.get(marks[action])
            self.buttons[action] = button
        columns = widgets.Layout(grid_template_columns=f"repeat({num_columns}, max-content)")
        self.choices.children = [widgets.GridBox(list(self.buttons.values()), layout=columns)]
        if not is_small:
            cells = "".join(f"<tr>{''.join(map(cell_html, row))}</tr>" for row in grid)
            self.view.value = f"<table style='border-spacing:4px;border-collapse:separate'>{cells}</table>"

    def _button(
        self, action: int, text: str, tooltip: str, layout: widgets.Layout | None = None
    ) -> widgets.Button:
        layout = layout or widgets.Layout(width="auto")
        button = widgets.Button(description=text, tooltip=tooltip, layout=layout)

        def play(_: widgets.Button) -> None:
            # A second click that waited while the model moved meant the position before: its button is gone.
            is_shown = self.buttons.get(action) is button
            if is_shown and not bool(button.disabled):
                self.choose(action)

        button.on_click(play)
        return button

    def _model_html(self, frames: Sequence[Frame]) -> str:
        """Return the bars of the model's last move; with hidden cards those of all its moves, at the end."""
        shown = [frame for frame in frames if frame.mover == 1 - self.seat and frame.bars]
        if not self.game.has_hidden_information:
            shown = shown[-1:]
        elif not self.is_over:
            shown = []
        return "".join(
            f"<div style='margin-top:0.5em'>Move {frame.num_moves + 1}, which the model chose of "
            f"{len(frame.bars)}:</div>{bars_html(frame.bars)}"
            for frame in shown
        )

    def _ipython_display_(self) -> None:
        """Display the buttons and, for readers of a saved notebook, a game against a random person."""
        display(self.widget)
        show_still(self.against_random_person().record, self.game, title="The person played at random. ")

    def against_random_person(self) -> "PlayAgainst":
        """Return another, finished game against a person who plays at random."""
        other = PlayAgainst(self.game, self.player, self.seed, seat=self.seat)
        source = random.Random(self.seed)
        while not other.is_over:
            other.choose(source.choice(other.state.legal_actions()))
        return other


def cell_html(mark: str) -> str:
    text = "&nbsp;" if mark == "." else mark.upper()
    return f"<td style='{DISC_STYLE}{COLOURS.get(mark, 'inherit')}'>{text}</td>"


def bars_html(bars: Sequence[Bar]) -> str:
    """Return a small table of bars."""
    rows = []
    for bar in likeliest(bars):
        share = bar.probability or 0.0
        colour = "#2f7fd1" if bar.is_chosen else "rgba(128,128,128,0.55)"
        percent = "–" if bar.probability is None else f"{bar.probability:.1%}"
        strip = f"<div style='width:{100 * share:.1f}%;height:0.8em;background:{colour}'></div>"
        words = f"<b>{escape(bar.words)}</b>" if bar.is_chosen else escape(bar.words)
        rows.append(
            f"<tr><td style='text-align:left;padding-right:0.6em'>{words}</td>"
            f"<td style='width:10em'>{strip}</td><td style='text-align:right'>{percent}</td></tr>"
        )
    return f"<table style='line-height:1.2'>{''.join(rows)}</table>"
