"""What so many ranks cannot share is refused with the field and a number that they can."""

import pytest
from refusals import MACHINES, refused

from rlnb.params import check_machine, load_params, parse_set


@pytest.mark.parametrize(
    ("notebook", "assignments", "field", "remedy"),
    [
        ("ppo_openspiel", ["training.games_per_step=12"], "training.games_per_step", "a multiple of 8"),
        ("spiral_self_play", ["training.games_per_step=6"], "training.games_per_step", "a multiple of 4"),
        ("spiral_self_play", ["training.games_per_step=8", "advantage.kind=group"],
         "training.games_per_step", "a multiple of 32"),
    ],
)  # fmt: skip
def test_what_four_ranks_cannot_share_is_refused(notebook, assignments, field, remedy):
    params = load_params(notebook, profile="tiny", overrides=parse_set(*assignments), environ={})
    told = refused(check_machine, params, MACHINES["cpu"], environ={"WORLD_SIZE": "4"})
    assert told.startswith(f"parameters cell: {field} = ") and f"write {remedy}" in told
