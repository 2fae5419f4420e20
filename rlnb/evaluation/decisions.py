"""Positions that a run keeps, by which what becomes of its policy is compared with what was trained.

Logits may differ in every digit and mean the same play, or differ little and lose a game: at the table only
the likeliest of the legal actions counts.
"""

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rlnb.games.text_games import TextGame, states_in_play
from rlnb.policy.acting import ConstrainedPlayer, Encoder
from rlnb.policy.actor_critic import ActorCritic
from rlnb.policy.loading import Policy
from rlnb.runs import write_text
from rlnb.tasks.prompts import game_text

FILE, NUM_KEPT, NUM_GAMES = "decisions.jsonl", 50, 50


@dataclass(frozen=True)
class Decision:
    """A position as the model reads it, a chat's markup included, and what is legal there.

    prompt: without the markup, from which another tokenizer has to make the same text.
    """

    game: str
    prompt: str
    text: str
    legal_actions: tuple[int, ...]


@dataclass(frozen=True)
class Agreement:
    """On how many positions two policies choose the same action, and where they do not.

    margin: the largest probability by which the first preferred its action where the second took another.
    """

    num_same: int
    num_positions: int
    margin: float


def draw_decisions(
    games: Iterable[TextGame], encoder: Encoder, *, count: int = NUM_KEPT, seed: int = 0
) -> list[Decision]:
    """Distinct positions of random play with something to choose; games take turns.

    Fewer than `count` where the games have no more: Kuhn poker has 12.
    """
    rng = random.Random(seed)
    by_game = []
    for game in games:
        states = states_in_play(game, NUM_GAMES, rng=rng)
        found = {game.prompt(state): tuple(state.legal_actions()) for state in states}
        own = [(prompt, legal) for prompt, legal in found.items() if len(legal) > 1]
        drawn = rng.sample(own, min(count, len(own)))
        by_game.append(
            [Decision(game.name, prompt, encoder.as_text(prompt), legal) for prompt, legal in drawn]
        )
    rounds = itertools.chain.from_iterable(itertools.zip_longest(*by_game))
    return [one for one in rounds if one][:count]


def save_decisions(output_dir: str | Path, decisions: Sequence[Decision]) -> None:
    """Keep them in a run's directory, where an export looks for them."""
    lines = [json.dumps(asdict(one)) + "\n" for one in decisions]
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    write_text(Path(output_dir) / FILE, "".join(lines))


def load_decisions(adapters: str | Path) -> list[Decision]:
    """Those of the run whose adapters/ or checkpoints/checkpoint-N this is; none where it kept none."""
    place = Path(adapters).resolve()
    path = next((one / FILE for one in (place, *place.parents[:2]) if (one / FILE).is_file()), None)
    if not str(adapters) or path is None:
        return []
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Decision(**{**row, "legal_actions": tuple(row["legal_actions"])}) for row in rows]


def probabilities_of(policy: Policy, decisions: Sequence[Decision]) -> list[list[float]]:
    """Of the legal actions of each position, in their order, at temperature 1."""
    if not decisions:
        return []
    encoder = Encoder(policy.tokenizer, str, end=policy.tokenizer.eos_token_id)
    player = ConstrainedPlayer(ActorCritic(policy, has_value=False), encoder)
    found = player.probabilities([one.text for one in decisions], [one.legal_actions for one in decisions])
    return [one.tolist() for one in found]


def num_same_texts(policy: Policy, decisions: Sequence[Decision]) -> int:
    """On how many positions this tokenizer's chat template makes the text that the run's model read."""
    written = [
        one.prompt if one.text == one.prompt else game_text(one.prompt, tokenizer=policy.tokenizer)
        for one in decisions
    ]
    return sum(text == one.text for text, one in zip(written, decisions, strict=True))


def compare_actions(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> Agreement:
    """Two policies' greedy actions on the same positions, as `probabilities_of` returns them."""
    margins = []
    for one, other in zip(first, second, strict=True):
        mine, theirs = one.index(max(one)), other.index(max(other))
        if mine != theirs:
            margins.append(one[mine] - one[theirs])
    return Agreement(len(first) - len(margins), len(first), max(margins, default=0.0))
