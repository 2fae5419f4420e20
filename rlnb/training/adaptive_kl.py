"""The weight of the divergence from the reference policy, moved so that the divergence stays where asked."""

GAIN = 0.1
LARGEST_ERROR = 0.2


def next_kl_coef(kl_coef: float, kl: float, *, target: float) -> float:
    """The weight for the next update: beta * (1 + 0.1 * clip(KL / target - 1, -0.2, 0.2)).

    kl: the divergence of this update, target: the one to hold, > 0; nats a token. Ziegler et al. 2019
    (arXiv:1909.08593), section 2.2, with their constants: at most 2% an update, so a factor of 10 takes some
    115 updates, and a weight of 0 stays 0. Their code writes the gain as batch_size / horizon.
    """
    error = kl / target - 1
    return kl_coef * (1 + GAIN * max(-LARGEST_ERROR, min(LARGEST_ERROR, error)))
