"""Saved positions of a run, in which an exported policy is compared with the trained one.

Logits may differ in every digit and mean the same play, or differ little and lose a game: what counts in play
is the most probable legal action.
"""

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from rlnb.games.text_games import TextGame, states_in_play
from rlnb.policy.loading import Policy
from rlnb.policy.prompts import game_text
from rlnb.run.directory import write_text
from rlnb.selfplay.acting import ActorCritic, ConstrainedPlayer, Encoder

FILE, NUM_KEPT, NUM_GAMES = "decisions.jsonl", 50, 50


@dataclass(frozen=True)
class Decision:
    """A position and its legal actions.

    prompt: without the markup of a chat. text: what the model reads, markup included; an exported tokenizer
    has to make the same text from the prompt.
    """

    game: str
    prompt: str
    text: str
    legal_actions: tuple[int, ...]


@dataclass(frozen=True)
class Agreement:
    """The number of positions in which two policies choose the same action.

    margin: the largest probability by which the first policy preferred its action to the second's.
    """

    num_same: int
    num_positions: int
    margin: float


def draw_decisions(
    games: Iterable[TextGame], encoder: Encoder, *, count: int = NUM_KEPT, seed: int = 0
) -> list[Decision]:
    """Return distinct positions of random play with several legal actions; games take turns.

    Fewer than `count` if the games have no more: Kuhn poker has 12.
    """
    rng = random.Random(seed)
    by_game = []
    for game in games:
        states = states_in_play(game, NUM_GAMES, rng=rng)
        legal_actions = {game.prompt(state): tuple(state.legal_actions()) for state in states}
        choices = [(prompt, actions) for prompt, actions in legal_actions.items() if len(actions) > 1]
        drawn = rng.sample(choices, min(count, len(choices)))
        by_game.append([Decision(game.name, text, encoder.as_text(text), actions) for text, actions in drawn])
    rounds = itertools.chain.from_iterable(itertools.zip_longest(*by_game))
    return [decision for decision in rounds if decision][:count]


def save_decisions(output_dir: str | Path, decisions: Sequence[Decision]) -> None:
    """Write decisions.jsonl into a run's directory, where an export looks for it."""
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(decision)) + "\n" for decision in decisions]
    write_text(Path(output_dir) / FILE, "".join(lines))


def load_decisions(adapters: str | Path) -> list[Decision]:
    """Return the positions of the run with this adapters/ or checkpoints/checkpoint-N; none if not saved."""
    directory = Path(adapters).resolve()
    paths = [path / FILE for path in (directory, *directory.parents[:2]) if (path / FILE).is_file()]
    if not str(adapters) or not paths:
        return []
    return [TypeAdapter(Decision).validate_json(row) for row in paths[0].read_text("utf-8").splitlines()]


def compute_probabilities(policy: Policy, decisions: Sequence[Decision]) -> list[list[float]]:
    """Return the probabilities of each position's legal actions at temperature 1."""
    if not decisions:
        return []
    encoder = Encoder(policy.tokenizer, str, end=policy.tokenizer.eos_token_id)
    player = ConstrainedPlayer(ActorCritic(policy, has_value=False), encoder)
    texts = [decision.text for decision in decisions]
    policies = player.probabilities(texts, [decision.legal_actions for decision in decisions])
    return [probabilities.tolist() for probabilities in policies]


def count_equal_texts(policy: Policy, decisions: Sequence[Decision]) -> int:
    """Return the number of positions whose text this tokenizer's chat template reproduces."""
    return sum(
        decision.text == decision.prompt  # the run used no chat
        or any(  # whether the run thought, or not
            decision.text == game_text(decision.prompt, tokenizer=policy.tokenizer, thinking=thinking)
            for thinking in (False, True)
        )
        for decision in decisions
    )


def compare_actions(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> Agreement:
    """Compare two policies' greedy actions, given `compute_probabilities` on the same positions."""
    margins = []
    for probabilities, other in zip(first, second, strict=True):
        action, other_action = probabilities.index(max(probabilities)), other.index(max(other))
        if action != other_action:
            margins.append(probabilities[action] - probabilities[other_action])
    return Agreement(len(first) - len(margins), len(first), max(margins, default=0.0))
