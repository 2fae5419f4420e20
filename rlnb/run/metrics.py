"""The table of all metrics: every name that a run may report, what it measures, its unit."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

STATUSES: Final = (
    "ok_with_output", "ok_without_output", "no_code", "syntax_error", "runtime_error", "timeout",
    "memory_exceeded", "output_exceeded", "killed", "sandbox_error",
)  # fmt: skip
ENDINGS: Final = (
    "success", "failed", "stuck", "illegal", "exception", "timeout", "forbidden", "no_code", "sandbox_error",
)  # fmt: skip
STRATEGY: Final = (
    ("score", "graded reward, mean over completions", "log share"),
    ("valid_share", "completions that are a strategy and answer with a key", "share"),
    ("honest_share", "completions all of whose games ended by the rules", "share"),
    ("skill", "score of the honest completions alone", "log share"),
    ("win_share", "games that reached the target", "share"),
    ("distinct_programs", "different programs among the completions", "programs"),
    ("suspicious_share", "completions that the monitor counts", "share"),
)
GREEDY_STRATEGY: Final = (
    ("greedy_score", "score of the greedy completions", "log share"),
    ("greedy_skill", "score of the honest ones of the greedy completions", "log share"),
)
PLAYERS: Final = (
    ("corner", "the corner rule"),
    ("greedy_merge", "greedy merging"),
    ("best_of_untrained", "the best of the untrained samples"),
)
GAME: Final = (
    ("win_share", "programs that are valid and whose output the opponent does not predict", "share"),
    ("valid_share", "programs that run, print, and print the same in every interpreter", "share"),
    ("opponent_right", "valid programs whose output the opponent predicts", "share"),
    ("trivial_share", "valid programs that compute nothing", "share"),
    ("echo_share", "valid programs whose source contains their output", "share"),
    ("distinct_shapes", "different programs, constants and names aside, a valid program", "share"),
)
GAME_IN_TRAINING: Final = (
    ("token_probability", "geometric mean of the opponent's probabilities of an output's tokens", "share"),
    ("output_characters", "length of a valid program's output, mean", "characters"),
    ("predictor_right", "predictions of the role predictor that are right", "share"),
)
INVALID_KINDS: Final = (
    "no_code", "syntax_error", "long_code", "runtime_error", "timeout", "memory_exceeded", "output_exceeded",
    "killed", "silent", "long_output", "unreadable", "not_deterministic",
)  # fmt: skip
PLAY: Final = (
    ("first_score", "mean score of the first seat, games of training", "score"),
    ("score", "mean score of the policy, 0.5 by definition in self-play", "score"),
    ("draw_share", "drawn games of training; misleading on its own in self-play", "share"),
    ("turns", "turns of the policy, a game", "turns"),
    ("invalid_share", "answers without a legal move", "share"),
    ("legal_mass", "what an unconstrained policy gives to the legal answers; constrained play", "share"),
    ("completion_tokens", "length of an answer, mean", "tokens"),
    ("distinct_share", "games of a batch with different moves", "share"),
    ("num_games", "games played so far", "games"),
    ("success_share", "fresh games that reach curriculum.success_score", "share"),
    ("utility", "(return - least) / (most - least), mean; what Affine calls a score", "share"),
    ("replay_size", "failures kept to be played again", "games"),
    ("replay_share", "games of an update that were failures before", "share"),
    ("replay_age", "time since the failures that are kept were first lost, mean", "updates"),
)
CURRICULUM: Final = (
    ("stage", "stage of the curriculum, from 1", "stage"),
    ("score", "mean score of the stage's newest fresh games, by which it ends", "score"),
    ("episodes", "fresh games since the stage began", "games"),
)
EXACT: Final = (
    ("nash_conv", "NashConv, what both seats could gain by a best response", "return"),
    ("self_play_draw", "drawn games of the policy against itself, tic-tac-toe", "share"),
    *(
        (f"{name}_{seat}", f"{what}; tic-tac-toe, {seat} seat", unit)
        for seat in ("first", "second")
        for name, what, unit in (
            ("loss", "games lost to perfect play", "share"),
            ("greedy_loss", "games lost to perfect play by the likeliest moves", "share"),
            ("random_score", "score against random play", "score"),
            ("best_response", "what a best responder leaves", "return"),
            ("greedy_best_response", "what a best responder leaves to the likeliest moves", "return"),
            ("blunder", "decisions against perfect play that lower the position's value", "share"),
        )
    ),
)
UPDATE: Final = (
    ("entropy_coef", "weight of the entropy bonus", "weight"),
    ("approx_kl", "KL from the policy before the update, mean over tokens and steps", "nats"),
    ("clip_share", "ratios that were clipped", "share"),
    ("first_ratio_deviation", "largest distance of a ratio from 1 before the first step", "ratio"),
    ("num_passed_rows", "distinct rows passed in an epoch", "rows"),
    ("magnet_kl", "KL to the magnet, mean over tokens", "nats"),
    ("kl_coef", "weight of the divergence from the reference policy; only with one", "weight"),
    ("num_steps", "optimizer steps made, fewer where target_kl ended the update; only with one", "steps"),
    ("value_loss", "squared error of the value head, mean over turns", "reward squared"),
    ("explained_variance", "share of the targets' variance that values explain", "share"),
)


class Metric(NamedTuple):
    """The meaning of a metric, and its unit."""

    what: str
    unit: str


METRICS: Final[Mapping[str, Metric]] = {
    # The optimizer step, as TRL's GRPOTrainer logs it (docs/one_grpo_step.md).
    "loss": Metric("policy loss; about 0 on policy by construction, so watch the reward", "nats"),
    "grad_norm": Metric("gradient norm before clipping", "norm"),
    "learning_rate": Metric("learning rate of this step", "rate"),
    "epoch": Metric("passes over the prompts so far", "epochs"),
    "num_tokens": Metric("prompt and completion tokens seen so far", "tokens"),
    "step_time": Metric("wall time of the step", "s"),
    "entropy": Metric("mean entropy of the policy over completion tokens", "nats"),
    "kl": Metric("mean divergence from the reference policy; only with beta > 0", "nats"),
    "clip_ratio/low_mean": Metric("tokens clipped from below, mean over ranks", "share"),
    "clip_ratio/low_min": Metric("tokens clipped from below, least of all ranks", "share"),
    "clip_ratio/high_mean": Metric("tokens clipped from above, mean over ranks", "share"),
    "clip_ratio/high_max": Metric("tokens clipped from above, most of all ranks", "share"),
    "clip_ratio/region_mean": Metric("tokens clipped from either side", "share"),
    "policy_loss": Metric("loss without the entropy bonus; only with one", "nats"),
    "entropy_coef": Metric("weight of the entropy bonus; only with one", "weight"),
    # Rewards.
    "reward": Metric("mean reward over the batch", "reward"),
    "reward_std": Metric("standard deviation of the reward within a group, mean over groups", "reward"),
    "frac_reward_zero_std": Metric("groups whose rewards are all equal and so teach nothing", "share"),
    "rewards/{function}/mean": Metric("mean of one reward function", "reward"),
    "rewards/{function}/std": Metric("standard deviation of one reward function", "reward"),
    "reward/avg_batch_reward": Metric("mean execution reward over the batch", "reward"),
    "reward/successful_predictions_count": Metric("programs of the batch that ran without error", "programs"),
    "reward/pass_rate": Metric("completions that pass all tests of their task", "share"),
    # Completions.
    "completions/mean_length": Metric("length of a completion, mean", "tokens"),
    "completions/min_length": Metric("length of a completion, shortest", "tokens"),
    "completions/max_length": Metric("length of a completion, longest", "tokens"),
    "completions/mean_terminated_length": Metric("length of one that ended by itself, mean", "tokens"),
    "completions/min_terminated_length": Metric("length of one that ended by itself, shortest", "tokens"),
    "completions/max_terminated_length": Metric("length of one that ended by itself, longest", "tokens"),
    "completions/clipped_ratio": Metric("completions cut at max_completion_length", "share"),
    "completions/closed_fence": Metric("completions whose code block is closed", "share"),
    **{f"status/{name}_share": Metric(f"completions that ended as {name}", "share") for name in STATUSES},
    # Where the time went.
    "time/reward_seconds": Metric("wall time inside reward functions", "s"),
    "time/opponent_seconds": Metric("wall time of the opponent's pass, a part of reward_seconds", "s"),
    "time/tracking_seconds": Metric("wall time inside this tracker since the step before", "s"),
    # Held-out tasks: `known` are families that are trained on, `new` are families never trained on.
    **{
        f"heldout/{split}/{name}": Metric(f"{what}, held-out tasks of {split} families", unit)
        for split in ("known", "new")
        for name, what, unit in (
            ("reward", "mean reward", "reward"),
            ("pass_rate_sampled", "sampled completions that pass all tests", "share"),
            ("pass_rate_greedy", "greedy completions that pass all tests", "share"),
        )
    },
    # Strategies for 2048; scores are shares of the target's logarithm above random play.
    **{f"strategy/{name}": Metric(what, unit) for name, what, unit in STRATEGY},
    **{f"strategy/{name}_share": Metric(f"strategies that ended as {name}", "share") for name in ENDINGS},
    **{
        f"heldout/strategy/{name}": Metric(f"{what}; held-out boards and wording", unit)
        for name, what, unit in (*STRATEGY, *GREEDY_STRATEGY)
    },
    **{
        f"heldout/players/{name}": Metric(f"greedy_score of {what} on the same boards", "log share")
        for name, what in PLAYERS
    },
    # The code game; shares of valid programs but for the first two.
    **{f"game/{name}": Metric(what, unit) for name, what, unit in (*GAME, *GAME_IN_TRAINING)},
    **{f"game/{name}_share": Metric(f"programs without a round: {name}", "share") for name in INVALID_KINDS},
    **{f"heldout/game/{name}": Metric(f"{what}; held-out values", unit) for name, what, unit in GAME},
    "heldout/game/predictor_right": Metric(
        "fixed programs that the policy predicts, two-sided game", "share"
    ),
    "heldout/game/second_right": Metric(
        "valid programs whose output the second judge predicts; held-out values", "share"
    ),
    # Self-play: games of training, the update, exact measures without sampling, sampled games in the arena.
    **{f"play/{name}": Metric(what, unit) for name, what, unit in PLAY},
    **{f"curriculum/{name}": Metric(what, unit) for name, what, unit in CURRICULUM},
    **{f"update/{name}": Metric(what, unit) for name, what, unit in UPDATE},
    "advantage/std": Metric("standard deviation of the advantages of a batch", "reward"),
    **{f"exact/{name}": Metric(what, unit) for name, what, unit in EXACT},
    **{f"exact/average/{name}": Metric(f"{what}; averaged weights", unit) for name, what, unit in EXACT},
    "arena/{opponent}/first_score": Metric("mean score against an opponent from the first seat", "score"),
    "arena/{opponent}/second_score": Metric("mean score against an opponent from the second seat", "score"),
    "arena/{opponent}/average_first_score": Metric("first_score of the averaged weights", "score"),
    "arena/{opponent}/average_second_score": Metric("second_score of the averaged weights", "score"),
    "arena/{opponent}/invalid_share": Metric("answers without a legal move against an opponent", "share"),
    "time/rollout_seconds": Metric("wall time of playing a batch of games", "s"),
    "time/update_seconds": Metric("wall time of credit and update", "s"),
    # MBPP, before, during and after training.
    "mbpp_eval/pass_rate": Metric("pass@1 on MBPP: right completions, mean over problems", "share"),
    "mbpp_eval/problems_passed": Metric("problems of MBPP that at least one completion solves", "problems"),
    # Generation by vLLM: how far its probabilities are from the trained policy's.
    "sampling/sampling_logp_difference/mean": Metric("log-probability gap to vLLM's, mean", "nats"),
    "sampling/sampling_logp_difference/max": Metric("log-probability gap to vLLM's, largest", "nats"),
    "sampling/importance_sampling_ratio/min": Metric("importance weight against vLLM, least", "ratio"),
    "sampling/importance_sampling_ratio/mean": Metric("importance weight against vLLM, mean", "ratio"),
    "sampling/importance_sampling_ratio/max": Metric("importance weight against vLLM, largest", "ratio"),
    # Once, when training ends.
    "train_loss": Metric("mean loss over the run", "nats"),
    "train_runtime": Metric("wall time of training", "s"),
    "train_samples_per_second": Metric("completions trained on per second", "1/s"),
    "train_steps_per_second": Metric("optimizer steps per second", "1/s"),
    "total_flos": Metric("floating-point operations, as transformers estimates them", "flop"),
}


def describe(name: str) -> Metric | None:
    """Return the metric of METRICS, ignoring TRL's `eval_` and the names of games and reward functions."""
    name = re.sub(r"^[a-z]\w*(\([^)]*\))?/(?=(exact|arena)/)", "", name.removeprefix("eval_"))
    name = re.sub(r"^arena/[^/]+/", "arena/{opponent}/", name)
    return METRICS.get(re.sub(r"^rewards/[^/]+/(mean|std)$", r"rewards/{function}/\1", name))
