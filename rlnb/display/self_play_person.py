"""A person plays against the model, with buttons, in a notebook."""

import random
from collections.abc import Sequence
from html import escape
from typing import Any, Protocol

import ipywidgets as widgets
import numpy as np
from IPython.display import display

from rlnb.display.self_play_boards import GRIDS, Scene, bars_html, scenes
from rlnb.display.self_play_pictures import show_still
from rlnb.games.text_games import TextGame
from rlnb.trajectories import Request, Turn

PERSON, MODEL = "person", "model"
COLOURS = {"x": "#2f7fd1", "o": "#d9661f"}
CELL = widgets.Layout(width="4rem", height="4rem", margin="2px")
# Occupied cells are disabled, which would make their marks pale.
CELL_STYLE = "<style>.rlnb-cell:disabled{opacity:1}</style>"
COLUMN = widgets.Layout(width="2.6rem", height="2.6rem", margin="2px")


class ProbablePlayer(Protocol):
    """Who answers and can say how likely each legal action was: `ConstrainedPlayer`."""

    def answer(self, requests: Sequence[Request]) -> list[Turn]: ...

    def probabilities(self, prompts: Sequence[str], legal: Sequence[tuple[int, ...]]) -> list[np.ndarray]: ...


class Panel(widgets.VBox):
    """A box whose trace in a saved notebook is a sentence."""

    def __repr__(self) -> str:
        return "Buttons to play against the model: they need a running notebook."


class PlayAgainst:
    """A game of a person against the model; display it, then click.

    Deals and the model's draws come from `seed` and the number of the game: what is clicked alike is answered
    alike. The person sees what its seat may see. The model's probabilities are shown after each of its moves;
    where cards are hidden only at the end, since they tell its card.

    buttons: {action: button} of the person to move, by OpenSpiel's ids; a tic-tac-toe cell or a connect-four
    column that cannot be played is disabled. record: the game so far, as a line of games.jsonl.
    """

    def __init__(self, game: TextGame, player: ProbablePlayer, seed: int = 0, *, seat: int = 0) -> None:
        self.game, self.player, self.seed = game, player, seed
        self.num_games = 0
        order = ("first", "second")
        names = [
            role if role.endswith("player") else f"{role} ({order[at]})" for at, role in enumerate(game.roles)
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
        self.widget = Panel([rules, top, self.status, *body, self.model_moves])
        self.new_game.on_click(lambda _: self.start())
        self.seat_choice.observe(lambda _: self.start(), names="value")
        self.start()

    def start(self) -> None:
        """A new game, in the seat that is chosen."""
        self.num_games += 1
        self.deals = random.Random(f"deals {self.seed} {self.num_games}")
        self.draws = random.Random(f"draws {self.seed} {self.num_games}")
        self.seat = int(self.seat_choice.value)
        self.state = self.game.new_state()
        self.moves: list[dict[str, Any]] = []
        self.turns: list[dict[str, Any]] = []
        self.forfeit: int | None = None
        self._go_on()

    @property
    def is_over(self) -> bool:
        return self.forfeit is not None or bool(self.state.is_terminal())

    @property
    def record(self) -> dict[str, Any]:
        """What `show_game` takes."""
        least = self.game.game.min_utility()
        returns = [0.0, 0.0]
        if self.forfeit is not None:
            returns[self.forfeit], returns[1 - self.forfeit] = least, -least
        elif self.is_over:
            returns = [float(one) for one in self.state.returns()]
        players = [MODEL, MODEL]
        players[self.seat] = PERSON
        return {
            "game": self.game.name, "players": players, "seed": self.seed,
            "history": list(self.state.history()), "returns": returns, "forfeit": self.forfeit,
            "moves": self.moves, "turns": self.turns,
        }  # fmt: skip

    def choose(self, action: int) -> None:
        """Play a move of the person; ValueError where it is not legal or the game is over."""
        if self.is_over:
            raise ValueError("the game is over; start a new one")
        self._apply(action)
        for button in self.buttons.values():
            button.disabled = True
        self.status.value = "<b>The model is thinking …</b>"
        self._go_on()

    def _apply(self, action: int) -> None:
        seat = self.state.current_player()
        self.game.apply(self.state, action)
        self.moves.append({"seat": seat, "action": action, "is_opening": False})

    def _go_on(self) -> None:
        """Chance and the model move until the person has to, or the game is over."""
        while not self.is_over:
            if self.state.is_chance_node():
                actions, shares = zip(*self.state.chance_outcomes(), strict=True)
                self.state.apply_action(self.deals.choices(actions, shares)[0])
            elif self.state.current_player() == self.seat:
                break
            else:
                self._ask_model()
        self._draw()

    def _ask_model(self) -> None:
        seat, state = self.state.current_player(), self.state
        prompt, legal = self.game.prompt(state), tuple(state.legal_actions())
        shares = self.player.probabilities([prompt], [legal])[0]

        def parse(text: str) -> Any:
            answer = self.game.parse(text, state)
            return answer.action, answer.problem

        turn = self.player.answer([Request(prompt, legal, len(self.moves), self.draws, parse)])[0]
        self.turns.append(
            {
                "seat": seat,
                "ply": len(self.moves),
                "text": turn.text,
                "action": turn.action,
                "problem": turn.problem,
                "legal_actions": list(legal),
                "value": turn.value,
                "probabilities": [float(one) for one in shares],
            }  # fmt: skip
        )
        if turn.action is None:
            self.forfeit = seat
        else:
            self._apply(turn.action)

    def _draw(self) -> None:
        found = scenes(self.record, self.game)
        self.status.value = f"<b>{escape(self._status(found))}</b>"
        if self.game.short_name in GRIDS:
            self._draw_grid(found[-1].grid)
        else:
            self.view.value = f"<pre style='margin:0'>{escape(self._seen(found))}</pre>"
            words = {} if self.is_over else self.game.legal_words(self.state)
            self.buttons = {action: self._button(action, text) for action, text in words.items()}
            self.choices.children = list(self.buttons.values())
        self.model_moves.value = self._model_html(found)

    def _status(self, found: Sequence[Scene]) -> str:
        if not self.is_over:
            return "Your move."
        own, other = self.record["returns"][self.seat], self.record["returns"][1 - self.seat]
        if own == other:
            return "A draw."
        how = f": {found[-1].heading}" if self.forfeit is not None else f" ({own:+g})"
        return f"You {'won' if own > other else 'lost'}{how}."

    def _seen(self, found: Sequence[Scene]) -> str:
        """The position as the person may know it, without hidden cards until the end."""
        if self.is_over:
            return found[-1].described
        rendering = self.game.rendering
        lines = (rendering.last_moves(self.state, self.seat), rendering.full(self.state, self.seat))
        return "\n".join(filter(None, lines))

    def _draw_grid(self, grid: Sequence[str]) -> None:
        """Cells of tic-tac-toe are buttons themselves; connect four has a button above each column."""
        legal = [] if self.is_over else self.state.legal_actions()
        is_small = self.game.short_name == "tic_tac_toe"
        num_columns, marks = len(grid[0]), "".join(grid)
        self.buttons = {}  # new ones: a click that waited meant the position before
        for action in range(9 if is_small else num_columns):
            row, column = divmod(action, num_columns)
            place = f"row {row + 1}, column {column + 1}" if is_small else f"column {action + 1}"
            button = self._button(action, "", tooltip=place, layout=CELL if is_small else COLUMN)
            button.disabled = action not in legal
            button.description = marks[action].upper().replace(".", " ") if is_small else str(action)
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

    def _button(self, action: int, text: str, **options: Any) -> widgets.Button:
        options = {"tooltip": text, "layout": widgets.Layout(width="auto")} | options
        button = widgets.Button(description=text, **options)

        def clicked(_: widgets.Button) -> None:
            # A second click that waited while the model moved meant the position before: its button is gone.
            is_shown = any(one is button for one in self.buttons.values())
            if is_shown and not button.disabled:
                self.choose(action)

        button.on_click(clicked)
        return button

    def _model_html(self, found: Sequence[Scene]) -> str:
        """The model's last move among its legal ones; of hidden cards all of its moves, once it is over."""
        own = [scene for scene in found if scene.mover == 1 - self.seat and scene.bars]
        is_telling = self.game.has_hidden_information
        shown = own[-1:] if not is_telling else own if self.is_over else []
        return "".join(
            f"<div style='margin-top:0.5em'>Move {scene.num_moves + 1}, which the model chose of "
            f"{len(scene.bars)}:</div>{bars_html(scene.bars)}"
            for scene in shown
        )

    def _ipython_display_(self) -> None:
        """The buttons and, for a saved notebook's readers, a game against a person who plays at random."""
        display(self.widget)
        scripted = self.against_random_person()
        show_still(scripted.record, self.game, title="The person played at random. ")

    def against_random_person(self) -> "PlayAgainst":
        """A finished game of its own; this one stays as it is."""
        other = PlayAgainst(self.game, self.player, self.seed, seat=self.seat)
        source = random.Random(self.seed)
        while not other.is_over:
            other.choose(source.choice(other.state.legal_actions()))
        return other


def cell_html(mark: str) -> str:
    colour = COLOURS.get(mark, "inherit")
    style = (
        f"width:2.6rem;height:2.2rem;padding:0;text-align:center;font-size:1.4rem;font-weight:700;color:{colour};"
        "background:rgba(128,128,128,0.18)"
    )
    return f"<td style='{style}'>{mark.upper() if mark != '.' else '&nbsp;'}</td>"
