"""The arena counts what was played, knows who is whom, and leaves the policy as it was."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyspiel
import pytest
import torch
from pytest import approx
from scripted_play import X_WINS, Scripted, any_legal, line
from self_play_run import params_of, parts_of

from rlnb.evaluation.arena import (
    EXACT_GAMES,
    Arena,
    WithWeights,
    arena_metrics,
    arena_rows,
)
from rlnb.evaluation.compare import wilson_interval
from rlnb.evaluation.nash import nash_conv
from rlnb.games.opponents import PerfectPlayer, RandomPlayer, yardstick
from rlnb.games.perfect_tictactoe import best_actions, board_of
from rlnb.games.text_games import load_game
from rlnb.metrics import describe
from rlnb.policy.adapters import AdapterValues, adapters_of
from rlnb.rollouts import LEARNER, Rules, against, play_games
from rlnb.trajectories import Move, PlayedGame, Trajectory, Turn

TIC_TAC_TOE = load_game("tic_tac_toe", style="compact")


def turn(problem=None) -> Turn:
    return Turn((), (), (), (), None if problem else 0, (0,), 0, problem)


def played(seat: int, result: float, *, history=(0,), problems=(None,)) -> PlayedGame:
    """A game of the learner in a seat against random play, with its result in X's units."""
    players = (LEARNER, "random") if seat == 0 else ("random", LEARNER)
    turns = tuple(turn(problem) for problem in problems)
    own = Trajectory("tic_tac_toe", seat, TIC_TAC_TOE.roles[seat], turns, 0.0, "random", 0)
    moves = tuple(Move(0, action, "") for action in history)
    return PlayedGame("tic_tac_toe", players, 0, history, moves, (result, -result), (own,))


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def arena(cache_dir) -> Arena:
    """Of the tiny model at tic-tac-toe, random weights."""
    return parts_of(params_of(cache_dir, game={"name": "tic_tac_toe"}))[0]


@pytest.fixture(scope="module")
def exact(arena) -> dict[str, float]:
    return arena.exact()


def test_a_row_counts_wins_draws_and_losses_of_a_seat():
    games = [
        played(0, 1.0, history=(1,)),
        played(1, 1.0, history=(1,)),
        played(0, 0.0, history=(2,), problems=(None, None, "illegal")),
        played(1, -1.0, history=(3,)),
        played(0, 1.0, history=(1,)),
        played(0, -1.0, history=(4,), problems=("no_action",)),
    ]
    first, second = arena_rows(games, TIC_TAC_TOE, acting="free", greedy=False, weights="average")
    assert (first.game, first.opponent, first.seat, first.role) == ("tic_tac_toe", "random", 0, "X")
    assert (first.acting, first.greedy, first.weights) == ("free", False, "average")
    assert (first.num_games, first.wins, first.draws, first.losses) == (4, 2, 1, 1)
    assert first.score.value == 0.625  # (1 + .5 + 1 + 0) / 4
    # By hand, z*z = 3.8416: middle (.625 + .4802) / 1.9604, half 1.96 / 1.9604 * sqrt(.0586 + .0600)
    assert (first.score.low, first.score.high) == approx((0.2194, 0.9081), abs=2e-4)
    assert first.score == wilson_interval(0.625, 4)
    assert first.invalid_share == 2 / 6
    assert first.distinct_share == 3 / 4
    assert (first.random_score, first.ceiling) == approx((0.64841, 0.99740), abs=1e-5)
    assert (second.seat, second.role, second.num_games) == (1, "O", 2)
    assert (second.wins, second.draws, second.losses, second.score.value) == (1, 0, 1, 0.5)
    assert (second.invalid_share, second.distinct_share) == (0, 1)
    assert (second.random_score, second.ceiling) == approx((0.35159, 0.96243), abs=1e-5)
    assert arena_metrics([first, second]) == {
        "arena/random/average_first_score": 0.625,
        "arena/random/average_second_score": 0.5,
    }
    last = [replace(row, weights="last") for row in (first, second)]
    assert arena_metrics(last) == {
        "arena/random/first_score": 0.625,
        "arena/random/second_score": 0.5,
        "arena/random/invalid_share": approx(1 / 6),
    }


def test_a_seat_without_games_has_no_row_and_an_unknown_game_no_yardstick():
    rows = arena_rows([played(1, 0.0)], TIC_TAC_TOE, acting="free", greedy=True)
    assert [row.seat for row in rows] == [1]
    game = load_game("breakthrough(rows=5,columns=5)", style="compact")
    assert yardstick(game) is None
    (row,) = arena_rows([played(0, 1.0)], game, acting="free", greedy=True)
    assert (row.random_score, row.ceiling) == (None, None)


@pytest.mark.parametrize("opponent, ceiling", [("perfect", 0.5), ("mcts:10", None)])
def test_the_ceiling_is_that_against_this_opponent(opponent, ceiling):
    game = replace(played(0, 0.0), players=(LEARNER, opponent))
    (row,) = arena_rows([game], TIC_TAC_TOE, acting="constrained", greedy=False)
    assert (row.opponent, row.ceiling) == (opponent, ceiling)
    assert row.random_score is not None


def test_more_than_half_can_be_won_from_an_equilibrium_that_gives_small_pots_away():
    kuhn = load_game("kuhn_poker", style="compact")
    game = replace(played(0, 0.0), game=kuhn.name, players=(LEARNER, "nash"))
    (row,) = arena_rows([game], kuhn, acting="constrained", greedy=False)
    assert row.ceiling == approx(0.61108, abs=1e-5)


def test_a_scripted_game_is_won_by_who_completed_a_line():
    episodes = against(TIC_TAC_TOE, "other", 2, seed=0)
    games = play_games(episodes, {LEARNER: line(X_WINS), "other": line(X_WINS)})
    first, second = arena_rows(games, TIC_TAC_TOE, acting="free", greedy=False)
    assert (first.wins, first.losses, second.wins, second.losses) == (1, 0, 0, 1)


def test_an_answer_without_a_move_loses_the_game_and_is_counted():
    silent = Scripted(lambda request: "I would rather not say.")
    games = play_games(against(TIC_TAC_TOE, "random", 4, seed=0), {LEARNER: silent, "random": RandomPlayer()})
    rows = arena_rows(games, TIC_TAC_TOE, acting="free", greedy=False)
    assert [(row.losses, row.num_games, row.invalid_share) for row in rows] == [(2, 2, 1.0)] * 2


@pytest.mark.parametrize("name", ["tic_tac_toe", "kuhn_poker", "leduc_poker"])
def test_random_against_random_is_the_known_yardstick(name):
    """1,000 games a seat, seed 1: four standard deviations."""
    game = load_game(name, style="compact")
    players = {LEARNER: Scripted(any_legal), "random": RandomPlayer()}
    games = play_games(against(game, "random", 2000, seed=1), players)
    for row in arena_rows(games, game, acting="free", greedy=False):
        assert row.num_games == 1000
        assert abs(row.score.value - row.random_score) < 4 * 0.5 / 1000**0.5
        assert row.distinct_share > (0.4 if name == "tic_tac_toe" else 0.0)


def perfect_answers() -> Scripted:
    """Perfect play through text: the board is read from the prompt."""

    def says(request) -> str:
        rows = request.prompt.splitlines()[1:4]
        board = "".join(cell if cell in "xo" else "." for row in rows for cell in row)
        return str(request.random.choice(sorted(best_actions()[board])))

    return Scripted(says)


def test_perfect_against_perfect_always_draws():
    assert board_of(pyspiel.load_game("tic_tac_toe").new_initial_state()) == "." * 9
    players = {LEARNER: perfect_answers(), "perfect": PerfectPlayer()}
    games = play_games(against(TIC_TAC_TOE, "perfect", 60, seed=0), players)
    rows = arena_rows(games, TIC_TAC_TOE, acting="free", greedy=False)
    assert [(row.draws, row.num_games, row.score.value) for row in rows] == [(30, 30, 0.5)] * 2
    assert all(row.distinct_share > 0.5 for row in rows)


def test_the_exact_figures_of_uniform_play_are_the_known_ones(arena):
    """The unembedding at 0 makes all answers equally likely; test_exact_tictactoe.py has the same figures."""
    weight = arena.actor.policy.model.get_output_embeddings().weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.zero_()
        found = arena.exact()
        weight.copy_(kept)
    assert found["loss_first"] == approx(0.7775, abs=1e-4)
    assert found["loss_second"] == approx(0.9678, abs=1e-4)
    assert found["nash_conv"] == approx(1.9197, abs=1e-4)
    assert found["random_score_first"] == approx(0.58492 + 0.12698 / 2, abs=1e-5)
    assert found["random_score_second"] == approx(0.28810 + 0.12698 / 2, abs=1e-5)
    assert found["self_play_draw"] == approx(0.12698, abs=1e-5)
    assert found["greedy_best_response_first"] == found["greedy_best_response_second"] == -1


def test_sampled_games_agree_with_the_exact_figures(arena, exact):
    """400 games, seed of the run: the interval of each seat holds what is exact."""
    rows = arena.against({"random": RandomPlayer()}, num_games=400, acting="constrained")
    for row, name in zip(rows, ("first", "second"), strict=True):
        assert row.num_games == 200 and row.invalid_share == 0
        assert row.score.low < exact[f"random_score_{name}"] < row.score.high


def test_greedy_games_are_those_of_the_likeliest_moves(arena, exact):
    """Perfect play never loses, and greedy answers lose as often to it as the exact share says."""
    rows = arena.against({"perfect": PerfectPlayer()}, num_games=200, acting="constrained", greedy=True)
    for row, name in zip(rows, ("first", "second"), strict=True):
        assert row.greedy and row.wins == 0
        spread = 4 * 0.5 / row.num_games**0.5
        assert abs(row.losses / row.num_games - exact[f"greedy_loss_{name}"]) <= spread


def test_every_evaluation_plays_the_same_games(arena):
    found = [arena.against({"random": RandomPlayer()}, num_games=20, acting="constrained") for _ in range(2)]
    assert found[0] == found[1]


@pytest.mark.parametrize("acting, invalid", [("constrained", 0.0), ("free", 1.0)])
def test_the_policy_answers_as_it_is_asked_to(cache_dir, acting, invalid):
    """Random weights write no legal move by themselves, and nothing else where they are constrained."""
    params = params_of(cache_dir, game={"name": "tic_tac_toe", "max_new_tokens": 3})
    arena = parts_of(params)[0]
    rows = arena.against({"random": RandomPlayer()}, num_games=8, acting=acting)
    assert [row.acting for row in rows] == [acting] * 2
    assert [row.invalid_share for row in rows] == approx([invalid] * 2, abs=0.2)


def test_averaged_weights_are_measured_beside_the_last_which_come_back_untouched(cache_dir):
    params = params_of(cache_dir, evaluation={"opponents": ["random", "nash"]})
    arena = parts_of(params)[0]
    policy = arena.actor.policy
    average = AdapterValues({name: one.detach() * 1.5 for name, one in adapters_of(policy)})
    before = AdapterValues.of(policy).values
    last = nash_conv(arena.game.game, arena.probabilities)
    found = arena.measure(average, num_games=4)
    now = dict(adapters_of(policy))
    assert all(torch.equal(now[name], one) for name, one in before.items())
    assert found["exact/nash_conv"] == last
    average.put_into(policy)
    assert found["exact/average/nash_conv"] == nash_conv(arena.game.game, arena.probabilities) != last


def test_an_error_while_other_weights_are_at_work_leaves_the_last_in_place(arena):
    policy = arena.actor.policy
    zeros = AdapterValues({name: torch.zeros_like(one) for name, one in adapters_of(policy)})
    before = AdapterValues.of(policy).values

    def fails(request):
        raise RuntimeError("no answer")

    player = WithWeights(Scripted(fails), zeros, arena.actor)
    with pytest.raises(RuntimeError, match="no answer"):
        play_games(against(TIC_TAC_TOE, "random", 2, seed=0), {LEARNER: player, "random": RandomPlayer()})
    assert all(torch.equal(one, before[name]) for name, one in adapters_of(policy))


@pytest.mark.parametrize(
    "name, opponents", [("tic_tac_toe", ["random", "perfect", "mcts:10"]), ("kuhn_poker", ["random", "nash"])]
)
def test_every_measure_has_a_name_in_the_table(cache_dir, name, opponents):
    params = params_of(cache_dir, game={"name": name}, evaluation={"opponents": opponents})
    arena = parts_of(params)[0]
    found = arena.measure(AdapterValues.of(arena.actor.policy), num_games=2)
    assert [metric for metric in found if describe(metric) is None] == []
    assert {f"arena/{opponent}/second_score" for opponent in opponents} <= set(found)
    assert all(np.isfinite(value) for value in found.values())


def test_games_without_exact_measures_have_none(cache_dir):
    assert set(EXACT_GAMES) == {"tic_tac_toe", "kuhn_poker", "leduc_poker"}
    for sections in ({"game": {"name": "connect_four"}}, {"evaluation": {"exact": False}}):
        arena = parts_of(params_of(cache_dir, **sections))[0]
        assert not arena.can_be_exact and arena.exact() == {}


def test_cross_play_is_half_on_the_diagonal_and_what_one_wins_the_other_loses(arena):
    values = AdapterValues.of(arena.actor.policy)
    generator = torch.Generator().manual_seed(0)
    other = AdapterValues(
        {name: one + 0.1 * torch.randn(one.shape, generator=generator) for name, one in values.values.items()}
    )
    scores = arena.cross_play({"now": values, "other": other, "again": values}, num_games=20)
    assert scores.shape == (3, 3)
    assert np.diag(scores).tolist() == [0.5] * 3
    assert (scores + scores.T == 1).all()
    assert scores[0, 1] != 0.5
    assert scores[0, 1] == 1 - scores[1, 2]  # the same games, told from the other side
    assert scores[0, 2] == approx(0.5, abs=0.35)


def test_each_side_of_cross_play_answers_with_its_own_weights(arena):
    """One that always takes the lowest cell it may, by the unembedding, beats nobody by itself."""
    values = AdapterValues.of(arena.actor.policy)
    name = next(one for one in values.values if "lm_head" in one or "embed" in one)
    uniform = AdapterValues({**values.values, name: torch.zeros_like(values.values[name])})
    rules = Rules()
    players = {
        LEARNER: WithWeights(arena.constrained(), uniform, arena.actor),
        "other": WithWeights(arena.constrained(), values, arena.actor),
    }
    games = play_games(against(TIC_TAC_TOE, "other", 6, seed=0), players, rules=rules)
    for game in games:
        (own,) = game.trajectories
        for one in own.turns:
            assert one.probabilities == approx([1 / len(one.legal_actions)] * len(one.probabilities))


def test_a_checkpoint_is_an_opponent_by_the_name_of_its_directory(arena, tmp_path):
    checkpoint = tmp_path / "checkpoint-7"
    checkpoint.mkdir()
    AdapterValues.of(arena.actor.policy).save(checkpoint / "weights.safetensors")
    evaluation = arena.params.evaluation.model_copy(update={"opponents": ("random", str(checkpoint))})
    arena = replace(arena, params=arena.params.model_copy(update={"evaluation": evaluation}))
    opponents = arena.opponents()
    assert list(opponents) == ["random", "checkpoint-7"]
    rows = arena.against(opponents, num_games=4, acting="constrained")
    assert [(row.opponent, row.seat, row.num_games) for row in rows][2:] == [
        ("checkpoint-7", 0, 2), ("checkpoint-7", 1, 2),
    ]  # fmt: skip
