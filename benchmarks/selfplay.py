"""How fast games are played and learned from.

- `rollout_over_model`: time of a rollout over the time inside the model's passes, tic-tac-toe, tiny, no memo;
  after some rollouts, by which most prompts have become tokens.
- `vs_sequential`: games a second in lockstep, as they are played for an update, over games played one after
  another by `generate` held to the legal ids; a model of SmolLM2's.
- `scored_vs_generated`: actions for one batch of positions, by one pass over the legal ids, over answers of
  up to 32 tokens by `generate`, as the free mode writes a sentence and an action; `.._8`: up to 8, barely
  enough for the action.
- `kuhn_updates_per_second`: 512 games played, 4 epochs, equal prompts passed once.
- `ppo_outside_model_share`: share of a PPO step (16 games of tic-tac-toe, SmolLM2) that is neither forward,
  backward nor optimizer; `reference_pass_mib`: memory that a pass of the reference takes, next to
  `model_weights_mib`: there is no second copy of them.

    python benchmarks/selfplay.py --json
"""

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import interleave, report

from rlnb.advantages.gae import gae, turn_columns
from rlnb.games.answers import ParsedAnswer
from rlnb.games.text_games import TextGame, load_game
from rlnb.machine import probe, recommend
from rlnb.machine.threads import set_threads
from rlnb.notebook import load_cell
from rlnb.params import load_params, resolve
from rlnb.policy import Policy, load_policy
from rlnb.policy.generation import evaluating, generating
from rlnb.ppo.training import GAE_LAMBDA, load_playable_curriculum, make_ppo_batch, make_ppo_run
from rlnb.ppo.training import update as update_ppo
from rlnb.selfplay.acting import (
    ActorCritic,
    ConstrainedPlayer,
    Distribution,
    Encoder,
    FreePlayer,
    Position,
    compute_distributions,
)
from rlnb.selfplay.batch import Learner
from rlnb.selfplay.params import PlayerModelParams
from rlnb.selfplay.rollouts import (
    LEARNER,
    Request,
    Turn,
    collect_trajectories,
    play_games,
    self_play_episodes,
)
from rlnb.spiral.params import SpiralSelfPlayParams
from rlnb.spiral.training import ESTIMATORS, select_turns, spiral_loss

ROUNDS = 3
WARM_UP, ROLLOUTS = 5, 7


class TimedActor(ActorCritic):
    """An actor that counts the seconds inside the model's passes."""

    seconds = 0.0

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        return self.timed(lambda: super(TimedActor, self).hidden(ids))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.timed(lambda: super(TimedActor, self).logits(hidden))

    def timed(self, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        started = time.perf_counter()
        found = run()
        self.seconds += time.perf_counter() - started
        return found


class GeneratingPlayer:
    """The obvious implementation: `generate` for each answer, constrained to the legal ids token by token."""

    def __init__(self, policy: Policy, encoder: Encoder) -> None:
        self.policy = policy
        self.encoder = encoder

    def answer(self, requests: Sequence[Request]) -> list[Turn]:
        tries = [self.encoder.trie(request.legal_actions) for request in requests]
        prompts = self.encoder.prompt_ids([request.prompt for request in requests])
        width = max(map(len, prompts))
        pad = self.policy.tokenizer.pad_token_id
        ids = torch.tensor([[*[pad] * (width - len(prompt)), *prompt] for prompt in prompts])
        lengths = torch.tensor([[len(prompt)] for prompt in prompts])

        def allowed(row: int, tokens: torch.Tensor) -> list[int]:
            return list(tries[row].children.get(tuple(tokens[width:].tolist()), (self.encoder.end,)))

        with generating(self.policy):
            torch.manual_seed(requests[0].random.getrandbits(31))
            output = self.policy.model.generate(
                ids, attention_mask=(torch.arange(width) >= width - lengths).long(), do_sample=True,
                top_k=0, max_new_tokens=4, prefix_allowed_tokens_fn=allowed,
                eos_token_id=self.encoder.end, pad_token_id=pad,
            )  # fmt: skip
        turns = []
        for request, trie, prompt, tokens in zip(
            requests, tries, prompts, output[:, width:].tolist(), strict=True
        ):
            leaf = next(leaf for leaf in trie.leaves if tuple(tokens[: len(leaf)]) == leaf)
            action = request.legal_actions[trie.leaves[leaf]]
            turns.append(Turn(prompt, leaf, (), (), action, request.legal_actions, request.ply))
        return turns


class ForgetfulPlayer(ConstrainedPlayer):
    """A player that passes every position, also those that it has passed before."""

    def compute_distributions(self, positions: Sequence[Position]) -> list[Distribution]:
        return compute_distributions(
            self.actor, positions, temperature=self.temperature, max_tokens=self.max_tokens_per_pass
        )


def tiny_parts(name: str, actor_class: type[ActorCritic]) -> tuple[TextGame, ActorCritic, Encoder]:
    """Return a compact game, the model `tiny` with a value head, and their encoder."""
    return parts(name, PlayerModelParams(id="tiny", lora_rank=0, **PLAIN), actor_class, has_value=True)


PLAIN: dict[str, Any] = {"dtype": "float32", "load_in_4bit": False}


def parts(
    name: str, model: PlayerModelParams, actor_class: type[ActorCritic], *, has_value: bool
) -> tuple[TextGame, ActorCritic, Encoder]:
    policy = load_policy(model, is_trained=model.lora_rank == 0, seed=1)
    encoder = Encoder(policy.tokenizer, str, end=policy.tokenizer.eos_token_id)
    return load_game(name, style="compact"), actor_class(policy, has_value=has_value), encoder


def rollout_over_model() -> float:
    """Return the median of `ROLLOUTS` of 256 games, 128 at a time, after `WARM_UP` others."""
    game, actor, encoder = tiny_parts("tic_tac_toe", TimedActor)
    ratios = []
    for number in range(WARM_UP + ROLLOUTS):
        actor.seconds = 0.0  # type: ignore[assignment]
        started = time.perf_counter()
        player = ForgetfulPlayer(actor, encoder, max_tokens_per_pass=4096)
        with evaluating(actor.policy):  # as training does
            play_games(self_play_episodes(game, 256, seed=number), {LEARNER: player}, num_parallel=128)
        ratios.append((time.perf_counter() - started) / float(actor.seconds))  # type: ignore[arg-type]
    return float(np.median(ratios[WARM_UP:]))


def against_generate() -> dict[str, float]:
    """Return vs_sequential and scored_vs_generated on SmolLM2, interleaved."""
    model = PlayerModelParams(id="embedded", **PLAIN)
    game, actor, encoder = parts("tic_tac_toe", model, ActorCritic, has_value=False)
    constrained = ForgetfulPlayer(actor, encoder)
    generated = GeneratingPlayer(actor.policy, encoder)
    requests = waiting(game, 32)

    def games(player: Callable[[], Any], count: int, num_parallel: int) -> Callable[[], list[float]]:
        def run() -> list[float]:
            started = time.perf_counter()
            play_games(
                self_play_episodes(game, count, seed=3), {LEARNER: player()}, num_parallel=num_parallel
            )
            return [(time.perf_counter() - started) / count] * count

        return run

    def batch(player: Any) -> Callable[[], list[float]]:
        def run() -> list[float]:
            started = time.perf_counter()
            player.answer(requests)
            return [(time.perf_counter() - started) / len(requests)] * len(requests)

        return run

    played = interleave(
        {
            "lockstep": games(lambda: ConstrainedPlayer(actor, encoder), 32, 32),
            "sequential": games(lambda: generated, 2, 1),
        },
        rounds=ROUNDS,
    )
    free = {
        length: FreePlayer(actor, encoder, temperature=1.0, max_new_tokens=length, batch_size=32)
        for length in (8, 32)
    }
    answered = interleave(
        {"scored": batch(constrained), "8": batch(free[8]), "32": batch(free[32])}, rounds=ROUNDS
    )
    return {
        "vs_sequential": played["lockstep"]["rate"] / played["sequential"]["rate"],
        "games_per_second_embedded": played["lockstep"]["rate"],
        "scored_vs_generated": answered["scored"]["rate"] / answered["32"]["rate"],
        "scored_vs_generated_8": answered["scored"]["rate"] / answered["8"]["rate"],
    }


def waiting(game: TextGame, count: int) -> list[Request]:
    """Return requests in positions after two random moves."""
    found = []
    for number in range(count):
        state, source = game.new_state(), random.Random(number)
        for _ in range(2):
            state.apply_action(source.choice(state.legal_actions()))
        found.append(
            Request(
                game.prompt(state),
                tuple(state.legal_actions()),
                2,
                source,
                lambda text, **_: ParsedAnswer(None, None, ""),
            )
        )
    return found


def kuhn_updates() -> dict[str, float]:
    """Time whole updates of 512 games."""
    game, actor, encoder = tiny_parts("kuhn_poker", ActorCritic)
    params = SpiralSelfPlayParams(advantage={"kind": "gae"}, training={"num_epochs": 4, "magnet_coef": 0.2})
    learner = Learner(actor, params.training, temperature=1.0)
    seeds = iter(range(10_000))

    def step() -> list[float]:
        started = time.perf_counter()
        player = ConstrainedPlayer(actor, encoder, max_tokens_per_pass=4096)
        episodes = self_play_episodes(game, 512, seed=next(seeds))
        games = play_games(episodes, {LEARNER: player})
        trajectories = collect_trajectories(games)
        advantages, _ = ESTIMATORS["gae"](trajectories, {})
        batch = select_turns(trajectories, advantages, learner)
        learner.update(batch, partial(spiral_loss, params=params, step=0), seed=0, step=0)
        return [time.perf_counter() - started]

    return {"kuhn_updates_per_second": interleave({"step": step}, rounds=ROUNDS)["step"]["rate"]}


def ppo_step() -> dict[str, float]:
    """Time steps of PPO on SmolLM2 by the profile `embedded`; the first one warms up."""
    given = {"training": {"games_per_step": 16, "num_epochs": 1, "num_mini_batches": 1, "detach_steps": 0}}
    params = load_params("ppo_openspiel", profile="embedded", overrides=given, environ={})
    params = resolve(params, recommend(probe(ask_hub=False)))
    reward = load_cell("ppo_openspiel", "reward", {"params": params})["reward"]
    policy = load_policy(params.model, seed=1)
    run = make_ppo_run(params, policy, load_playable_curriculum(params), reward=reward)
    learner, actor = run.learner, run.learner.actor
    actor.__class__ = TimedActor  # the arena, the learner and the players share it
    shares = []
    for step in range(ROUNDS):
        actor.seconds = 0.0  # type: ignore[assignment]
        started = time.perf_counter()
        run.state.step = step
        trajectories = collect_trajectories(run.play(step))
        advantages = gae(*turn_columns(trajectories), lam=GAE_LAMBDA)
        batch = make_ppo_batch(trajectories, advantages, learner)
        with counted(torch.Tensor, "backward", actor), counted(torch.optim.AdamW, "step", actor):
            update_ppo(learner, batch, seed=1, step=step, kl_coef=0.05)
        shares.append(1 - float(actor.seconds) / (time.perf_counter() - started))  # type: ignore[arg-type]
    before = memory_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    learner.compute_anchor_logprobs(batch)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in policy.model.parameters())
    return {
        "ppo_outside_model_share": float(np.median(shares[1:])),
        "reference_pass_mib": memory_mib("VmHWM") - before,
        "model_weights_mib": weights / 2**20,
    }


@contextmanager
def counted(owner: type, name: str, actor: TimedActor) -> Iterator[None]:
    """Add the seconds of a method to those inside the model's passes."""
    method = getattr(owner, name)

    def timed(*given: Any, **options: Any) -> Any:
        return actor.timed(lambda: method(*given, **options))

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, method)


def memory_mib(field: str) -> float:
    """Return the memory of this process: VmRSS = now, VmHWM = the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(field))) / 1024


def main() -> None:
    set_threads(1)
    gc.freeze()  # as training does
    figures = {"rollout_over_model": rollout_over_model()}
    report(figures | against_generate() | kuhn_updates() | ppo_step(), description=__doc__ or "")


if __name__ == "__main__":
    main()
