"""The parts of a PPO run, as its parameters ask for them."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState

from rlnb.errors import ParamsError
from rlnb.evaluation.arena import Arena
from rlnb.evaluation.decisions import draw_decisions, save_decisions
from rlnb.evaluation.many_games import Arenas, able_opponents
from rlnb.games.text_games import TextGame, states_in_play
from rlnb.metrics import open_tracker, read_metrics
from rlnb.policy import Policy, load_policy
from rlnb.policy.acting import Encoder
from rlnb.policy.loading import load_tokenizer
from rlnb.rollouts import Rules, asked_again
from rlnb.training.checkpoints import checkpoint_to_resume
from rlnb.training.curriculum import Curriculum, load_curriculum, opponents_of
from rlnb.training.playable import check_arena_opponents
from rlnb.training.ppo import PpoState, Practice, train
from rlnb.training.resources import check_disk, checkpoint_bytes
from rlnb.training.self_play_checkpoints import restore, save_checkpoint
from rlnb.training.self_play_parts import actor_of, encoder_of, text_of
from rlnb.training.update import Learner, PpoTerms

SAMPLED_GAMES = 30


def curriculum_of(params: Any) -> Curriculum:
    """The stages with their games, once it is known that they can be played, beaten, and fit a prompt.

    Asks the model's tokenizer, not the model. Raises ParamsError.
    """
    found = load_curriculum(params)
    pairs = 2 * PartialState().num_processes
    if params.training.games_per_step % pairs:
        raise ParamsError(
            f"training.games_per_step = {params.training.games_per_step} cannot be shared by "
            f"{pairs // 2} ranks in pairs; write a multiple of {pairs}"
        )
    tokenizer = load_tokenizer(params.model)
    as_text, most = text_of(params, tokenizer), params.game.max_prompt_tokens
    for game in found.games.values():
        check_arena_opponents(game, able_opponents(game, params.evaluation.opponents))
        longest = longest_prompt(game, Encoder(tokenizer, as_text, end=tokenizer.eos_token_id), params)
        if longest > most:
            shorter = "game.style = compact, or " if params.game.style == "full" else ""
            raise ParamsError(
                f"game.max_prompt_tokens = {most} is less than the {longest} tokens that a prompt of "
                f"{game.name} may have; write at least {-(-longest * 5 // 256) * 64}, or {shorter}take "
                f"{game.name} out of curriculum.stages"
            )
    return found


def longest_prompt(game: TextGame, encoder: Encoder, params: Any) -> int:
    """Tokens of the longest prompt in some random games, and in those of the lowest and the highest actions.

    The latter are the longest of some games: bids that rise by one. With `game.invalid` retry the longest
    reason to ask again is in it, whose quotation of an answer has at most `game.max_new_tokens`.
    """
    rng, asks_again = random.Random(0), params.game.acting == "free" and params.game.invalid == "retry"
    prompts = []
    for choose, num_games in ((None, SAMPLED_GAMES), (min, 2), (max, 2)):
        for state in states_in_play(game, num_games, rng=rng, choose=choose):
            prompt = game.prompt(state)
            prompts.append(
                asked_again(prompt, game.parse("boxed{?}", state).reason) if asks_again else prompt
            )
    longest = max(map(len, encoder.all_prompt_ids(prompts)))
    return longest + params.game.max_new_tokens if asks_again else longest


def rules_of(params: Any) -> Rules:
    """What a game is worth: won or not, whatever it counts in."""
    asked = params.game
    return Rules(
        reward="outcome", max_turns=asked.max_turns, invalid=asked.invalid, num_retries=asked.num_retries,
        invalid_reward=asked.invalid_reward,
    )  # fmt: skip


def arenas_of(params: Any, policy: Policy, curriculum: Curriculum) -> Arenas:
    """The policy with its value head, as it is measured at every game of the curriculum.

    Against all of `evaluation.opponents` that can play the game, and those that the stages have for it.
    """
    actor, encoder = actor_of(params, policy, has_value=True), encoder_of(params, policy)
    pairings = [pairing for own in curriculum.pairings for pairing in own]
    arenas = []
    for game in curriculum.games.values():
        of_stages = [opponent for other, opponent in pairings if other.name == game.name]
        able = dict.fromkeys([*able_opponents(game, params.evaluation.opponents), *of_stages])
        evaluation = params.evaluation.model_copy(update={"opponents": tuple(able)})
        own = params.model_copy(update={"evaluation": evaluation})
        arenas.append(Arena(actor, encoder, game, rules_of(params), own))
    return Arenas(tuple(arenas))


def learner_of(params: Any, arenas: Arenas) -> Learner:
    """What is trained, and how: a fresh optimizer and fresh averages."""
    asked = params.training
    return Learner.of(
        arenas.arenas[0].actor, asked, temperature=params.game.temperature, value_coef=asked.value_coef,
        loss_tokens=params.loss_tokens, kl_coef=asked.init_kl_coef,
        terms=PpoTerms(
            value_learning_rate=asked.value_learning_rate, value_clip=asked.value_clip,
            detach_steps=asked.detach_steps, target_kl=asked.target_kl, kl_target=asked.kl_target,
            first_kl_coef=asked.init_kl_coef,
        ),
    )  # fmt: skip


def practice_of(params: Any, arenas: Arenas, curriculum: Curriculum) -> Practice:
    """What is played for each update: by the policy's weights as they are then, against whom it is asked."""
    arena = arenas.arenas[0]
    return Practice(
        curriculum=curriculum,
        rules=arena.rules,
        player=lambda: arena.player(params.game.acting),
        opponents=opponents_of(curriculum),
        params=params,
    )


def success_criteria(curriculum: Curriculum) -> dict[str, tuple[list[tuple[str, str]], float]]:
    """{stage: ([(game, opponent), ...], the score that it asks for)}, for `stage_scores`."""
    return {
        stage.name: ([(game.name, opponent) for game, opponent in pairings], stage.final_score)
        for stage, pairings in zip(curriculum.params.stages, curriculum.pairings, strict=True)
    }


def train_run(
    params: Any, output_dir: str | Path, *, say: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """A whole run from loading the model to its last checkpoint; the rows of its metrics. Resumes its own.

    What the notebook does cell by cell, without what it shows: for runs beside the one that is looked at.
    """
    output_dir, curriculum = Path(output_dir), curriculum_of(params)
    arenas = arenas_of(params, load_policy(params.model, seed=params.seed), curriculum)
    learner, practice = learner_of(params, arenas), practice_of(params, arenas, curriculum)
    checkpoint = checkpoint_to_resume(params, output_dir)
    state = PpoState.of(restore(checkpoint, learner, output_dir=output_dir))
    measure = partial(arenas.measure, learner.average, num_games=params.evaluation.interval_games)
    keep = params.training.save_total_limit
    check_disk(output_dir, checkpoint_bytes(learner), keep=keep)
    save_decisions(output_dir, draw_decisions(curriculum.games.values(), arenas.arenas[0].encoder))
    tracking = {"config": params.model_dump(), **params.tracking.model_dump()}
    with open_tracker(output_dir, resume_step=state.step, **tracking) as tracker:
        if state.step == 0:
            tracker.report(0, measure())
        if state.step < params.training.max_steps:
            state = train(
                learner, practice, state, tracker=tracker, output_dir=output_dir, evaluate=measure, say=say,
                save=lambda now: save_checkpoint(output_dir, learner, now, params, keep=keep),
            )  # fmt: skip
        tracker.report(state.step, measure())  # of a finished run again: it may have been killed just before
    return read_metrics(output_dir / "metrics.jsonl")
