"""The weight of the divergence from the reference policy, moved so that the divergence stays where asked."""

GAIN = 0.1
LARGEST_ERROR = 0.2
LEAST_SHARE = 0.01  # of its first value


def next_kl_coef(kl_coef: float, kl: float, *, target: float, first: float) -> float:
    """The weight for the next update: beta * (1 + 0.1 * clip(KL / target - 1, -0.2, 0.2)).

    kl: the divergence of this update, target: the one to hold, > 0; nats a token. Ziegler et al. 2019
    (arXiv:1909.08593), section 2.2, with their constants: at most 2% an update, so a factor of 10 takes some
    115 updates. Their code writes the gain as batch_size / horizon. Not theirs: it stays above a hundredth of
    `first`, its value at the start, for thousands of updates below the target would take as many to undo.
    """
    error = kl / target - 1
    moved = kl_coef * (1 + GAIN * max(-LARGEST_ERROR, min(LARGEST_ERROR, error)))
    return max(moved, LEAST_SHARE * first)
