"""What so many ranks cannot share is refused with the field and a number that they can."""

import pytest

from rlnb.errors import ParamsError
from rlnb.machine import Machine
from rlnb.params import check_machine, load_params, parse_set

CPU = Machine("cpu", "", None, 16.0, 4, "workstation", "reachable")


@pytest.mark.parametrize(
    ("notebook", "assignments", "refusal"),
    [
        (
            "ppo_openspiel", ["training.games_per_step=12"],
            "training.games_per_step = 12 cannot be shared by 4 ranks in pairs; write a multiple of 8",
        ),
        (
            "spiral_self_play", ["training.games_per_step=6"],
            "training.games_per_step = 6 cannot be shared by 4 ranks in games; write a multiple of 4",
        ),
        (
            "spiral_self_play", ["training.games_per_step=8", "advantage.kind=group"],
            "training.games_per_step = 8 cannot be shared by 4 ranks in groups of 8 games; "
            "write a multiple of 32",
        ),
    ],
)  # fmt: skip
def test_what_four_ranks_cannot_share_is_refused(notebook, assignments, refusal):
    params = load_params(notebook, profile="tiny", overrides=parse_set(*assignments), environ={})
    with pytest.raises(ParamsError) as refused:
        check_machine(params, CPU, environ={"WORLD_SIZE": "4"})
    assert str(refused.value) == f"parameters cell: {refusal}"
