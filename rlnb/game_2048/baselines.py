"""The results of simple strategies for 2048, as `make baselines` measured them."""

import json
from dataclasses import dataclass
from pathlib import Path

BASELINES_FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class BaselineResult:
    """The result of a baseline on a board. low, high: the 95% interval of the share of games won (Wilson)."""

    board: str
    baseline: str
    num_games: int
    won: float
    low: float
    high: float
    stuck: float
    median_largest: int
    median_moves: int


def load_baselines(path: Path = BASELINES_FILE) -> list[BaselineResult]:
    return [BaselineResult(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
