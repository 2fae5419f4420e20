"""The reward functions that TRL calls, made from functions that pay for a judged completion."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

Judged = TypeVar("Judged")

# Columns of the table of completions that are no rewards: TRL's, and those of `show`.
OTHER_COLUMNS = ("step", "prompt", "completion", "advantage", "outcome", "reason", "passed", "output")
TrlReward = Callable[..., list[float | None]]


def make_trl_rewards(
    rewards: Sequence[Callable[[Judged], float | None]],
    judge: Callable[..., Sequence[Judged]],
    *,
    is_failed: Callable[[Judged], bool],
    measure: Callable[[Sequence[Judged]], Mapping[str, float]],
    show: Callable[[Sequence[Judged]], Mapping[str, list[object]]],
) -> list[TrlReward]:
    """Return a function for TRL for each of `rewards`, which TRL adds up; the first logs the metrics.

    judge: called with the texts of a batch's completions, and the dataset's columns by name; once for all
    functions, to which TRL gives the same list.
    is_failed: the sandbox failed; every function returns None, so TRL leaves the completion out of its group.
    measure: the batch's metrics. show: columns of the table of completions.
    """

    last: list[tuple[Sequence[str], Sequence[Judged]]] = []  # the last batch
    names = [getattr(reward, "__name__", "reward") for reward in rewards]

    def make(index: int, reward: Callable[[Judged], float | None], name: str) -> TrlReward:
        logs = index == 0

        def pay(
            *,
            completions: Sequence[str],
            log_metric: Callable[[str, float], None] | None = None,
            log_extra: Callable[[str, list[object]], None] | None = None,
            **columns: object,
        ) -> list[float | None]:
            started = time.perf_counter()
            if not last or last[0][0] is not completions:
                last[:] = [(completions, judge(completions, **columns))]
            judged = last[0][1]
            if logs and log_metric:
                for name, value in measure(judged).items():
                    log_metric(name, value)
                log_metric("time/reward_seconds", time.perf_counter() - started)
            if logs and log_extra:
                for name, values in show(judged).items():
                    log_extra(name, values)
            return [None if is_failed(each) else reward(each) for each in judged]

        # It names TRL's metrics and its column in the table of completions, where the last of a name counts.
        pay.__name__ = name if names.count(name) == 1 and name not in OTHER_COLUMNS else f"{name}_{index}"
        return pay

    return [make(index, *pair) for index, pair in enumerate(zip(rewards, names, strict=True))]
