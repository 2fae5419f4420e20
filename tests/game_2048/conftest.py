"""A sandbox for all tests of a file, and the reward functions of the notebook."""

from collections.abc import Mapping, Sequence

import pytest

from rlnb.game_2048.reward import StrategyRewardFunction
from rlnb.notebook import load_cell
from rlnb.params import load_params


@pytest.fixture(scope="session")
def presets() -> Mapping[str, Sequence[StrategyRewardFunction]]:
    params = load_params("gpt_oss_2048", profile="tiny", environ={})
    return load_cell("gpt_oss_2048", "reward", {"params": params})["presets"]
