"""How many threads torch computes with on a CPU."""

import os
import sys


def set_threads(count: int) -> None:
    """Set torch's threads; 0 = OMP_NUM_THREADS, which `apply_environment` sets to the usable cores.

    A run is repeated bit for bit with the same number only: sums in another order differ in their last bits.
    """
    if count or "torch" in sys.modules:  # else torch reads the variable when it is imported
        import torch

        torch.set_num_threads(count or int(os.environ["OMP_NUM_THREADS"].partition(",")[0]))
