"""What is watched over a whole run: signs that it learns nothing, or something else."""

import math
from collections import deque
from collections.abc import Callable, Mapping
from statistics import fmean, pvariance
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

LARGEST_KL = 0.01
MANY_TIED = 0.5
SHORTEST_WINDOW = 10  # five steps stand still by chance in most runs


class Watch(TrainerCallback):
    """Says once each, with the parameter to change: all completions cut, KL above 0.01, tied groups, a reward
    that stands still.

    window: steps, SHORTEST_WINDOW at least, over which tied groups are counted; the reward stands when its
    means over two windows in a row differ by no more than the difference's standard error. KL is measured
    only with training.beta above 0. `said` holds what was said.
    """

    def __init__(self, *, window: int = 20, say: Callable[[str], None] = print) -> None:
        self.say = say
        self.said: dict[str, str] = {}
        self._tied: deque[float] = deque(maxlen=max(SHORTEST_WINDOW, window))
        self._rewards: deque[float] = deque(maxlen=2 * max(SHORTEST_WINDOW, window))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if not logs or logs.get("reward") is None or not state.is_world_process_zero:
            return
        self._tied.append(logs.get("frac_reward_zero_std") or 0.0)
        self._rewards.append(logs["reward"])
        for name, text in self.signs(logs).items():
            if name not in self.said:
                self.said[name] = text
                self.say(f"warning: step {state.global_step}: {text}")

    def signs(self, logs: Mapping[str, Any]) -> dict[str, str]:
        """What this log and the ones before it show, by name."""
        found = {}
        if (logs.get("completions/clipped_ratio") or 0.0) >= 1.0:
            found["cut"] = "all completions were cut; raise training.max_completion_length"
        if (logs.get("kl") or 0.0) > LARGEST_KL:
            found["kl"] = (
                f"kl is {logs['kl']:.3f}, above {LARGEST_KL}: the policy moves far from the model it was; "
                "lower training.learning_rate or raise training.beta"
            )
        if len(self._tied) == self._tied.maxlen and fmean(self._tied) > MANY_TIED:
            found["tied"] = (
                f"{fmean(self._tied):.0%} of the groups of the last {len(self._tied)} steps were tied and "
                "taught nothing; raise training.num_generations or training.temperature, or change "
                "reward.preset"
            )
        half = len(self._rewards) // 2
        if len(self._rewards) == self._rewards.maxlen:
            rewards = list(self._rewards)
            halves = rewards[:half], rewards[half:]
            error = math.sqrt(sum(pvariance(part) / half for part in halves))
            if abs(fmean(halves[1]) - fmean(halves[0])) <= error:  # of the difference of the two means
                found["standing"] = (
                    f"the reward has stood at {fmean(rewards):+.3f} for {len(rewards)} steps; look at the "
                    "samples, then at training.learning_rate and reward.preset"
                )
        return found
