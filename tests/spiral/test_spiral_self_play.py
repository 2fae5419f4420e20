"""The parameters of self-play: the paper's settings, what profiles change, what is refused at once."""

import pytest
from shipped_profiles import profiles_of

from rlnb.errors import ParamsError
from rlnb.machine import Machine, recommend
from rlnb.params import asks_network, check_machine, load_params, resolve
from rlnb.spiral.params import SpiralSelfPlayParams
from rlnb.spiral.setup import load_self_play_game

CPU = Machine("cpu", "", None, 16.0, 4, "workstation", "reachable")
NO_LOGIN = {"NETRC": "/none"}


def load(profile="default", **sections) -> SpiralSelfPlayParams:
    params = load_params("spiral_self_play", profile=profile, overrides=sections, environ={})
    assert isinstance(params, SpiralSelfPlayParams)
    return params


def test_the_default_file_holds_the_papers_settings_which_are_the_models_defaults():
    params = load()
    assert params == SpiralSelfPlayParams()
    assert (params.advantage.kind, params.advantage.decay, params.advantage.gamma) == ("rae", 0.95, 1.0)
    assert (params.training.max_steps, params.training.num_epochs, params.training.clip) == (400, 2, 0.2)
    game = params.game
    assert (game.acting, game.invalid, game.invalid_reward, game.forfeit_reward) == (
        "free", "forfeit", -1.5, 0.5,
    )  # fmt: skip
    assert (params.model.id, game.name, game.opponent) == ("auto", "tic_tac_toe", "self")


@pytest.mark.parametrize("profile", profiles_of("spiral_self_play"))
def test_the_opponents_of_a_profile_can_play_its_game(profile):
    params = load(profile)
    assert load_self_play_game(params).name == params.game.name


@pytest.mark.parametrize("profile", ["cpu", "tiny", "kuhn", "leduc", "embedded"])
def test_without_a_gpu_nothing_is_downloaded_and_the_machine_is_enough(profile):
    params = load(profile)
    assert not asks_network(params, environ=NO_LOGIN)
    resolved = resolve(params, recommend(CPU))
    check_machine(resolved, CPU)
    assert resolved.training.gradient_checkpointing is False
    assert resolved.model.dtype == "float32"


def test_sums_over_tokens_are_divided_by_the_longest_answer_unless_asked_otherwise():
    assert load(game={"max_new_tokens": 77}).loss_tokens == 77
    assert load(game={"acting": "constrained", "max_new_tokens": 77}).loss_tokens == 1
    for acting in ("free", "constrained"):
        assert load(game={"acting": acting}, training={"loss_tokens": 5}).loss_tokens == 5


CONFLICTS = [
    (
        {"advantage": {"kind": "group"}},
        "advantage.kind = 'group' compares games of the same opening and seat, of which there is one by "
        "game.games_per_opening = 1; write 2 or more there",
    ),
    (
        {"advantage": {"kind": "group"}, "game": {"opponent": "random", "games_per_opening": 2}},
        "advantage.kind = 'group' compares games of the same opening and seat, of which there is one by "
        "game.games_per_opening = 2; write 4 or more there",
    ),
    (
        {"advantage": {"kind": "gae"}, "training": {"drop_zero_advantages": True}},
        "training.drop_zero_advantages = true would hide from the value head of advantage.kind = 'gae' what "
        "it knows; write false",
    ),
    (
        {"evaluation": {"modes": ["constrained"]}},
        "evaluation.modes = ['constrained'] leaves out game.acting = 'free', which the curve shows; add it",
    ),
    (
        {"advantage": {"kind": "gae_plies"}, "game": {"opponent": "random", "acting": "constrained"}},
        "advantage.kind = 'gae_plies' asks for gae_plies, which follows the plies of both seats, so "
        "game.opponent must be self and game.acting constrained: a forfeit is not zero-sum; write gae",
    ),
    (
        {"model": {"lora_rank": 0, "load_in_4bit": True}},
        "model.lora_rank = 0 trains weights that model.load_in_4bit has quantized; write 16, or false there",
    ),
    (
        {"model": {"lora_rank": 0, "dtype": "float16"}},
        "model.dtype = 'float16' has gradients that cannot be scaled, since model.lora_rank = 0 trains every "
        "weight; write float32 or auto, or model.lora_rank = 16",
    ),
    (
        {"game": {"acting": "constrained", "warm_up_steps": 10}},
        "game.warm_up_steps = 10 teaches what game.acting = 'constrained' enforces anyway; write 0, or "
        "acting = free",
    ),
    (
        {"game": {"opponent": "random"}, "training": {"games_per_step": 9}},
        "training.games_per_step = 9 is odd, and the seats alternate against an opponent; write an even "
        "number",
    ),
    (
        {"game": {"opponent": "random", "games_per_opening": 3}, "training": {"games_per_step": 12}},
        "game.games_per_opening = 3 is odd, and each opening is played from both seats; write an even number",
    ),
    (
        {"game": {"games_per_opening": 5}, "training": {"games_per_step": 12}},
        "game.games_per_opening = 5 does not divide training.games_per_step = 12",
    ),
    (
        {"training": {"learning_rate": 1e-5, "final_learning_rate": 1e-4}},
        "training.final_learning_rate = 0.0001 is above training.learning_rate = 1.0e-5; write at most that",
    ),
    (
        {"training": {"resume": "/none/checkpoint-3"}},
        "training.resume = '/none/checkpoint-3' is not a directory; write auto, latest, never, or a "
        "checkpoint's directory",
    ),
    (
        {"evaluation": {"modes": ["free", "free"]}},
        "evaluation.modes = ['free', 'free'] may hold constrained and free, each once",
    ),
]


@pytest.mark.parametrize("sections, message", CONFLICTS, ids=lambda value: str(value)[:60])
def test_what_does_not_go_together_is_refused_with_the_remedy(sections, message):
    with pytest.raises(ParamsError) as refusal:
        load(**sections)
    assert str(refusal.value) == "parameters cell: " + message


def test_values_that_go_together_are_not_refused():
    load(advantage={"kind": "group"}, game={"games_per_opening": 8})
    load(advantage={"kind": "gae_plies"}, game={"acting": "constrained"})
    load(game={"opponent": "random", "games_per_opening": 2}, training={"games_per_step": 8})
    load(game={"warm_up_steps": 10}, model={"lora_rank": 0, "load_in_4bit": False})
