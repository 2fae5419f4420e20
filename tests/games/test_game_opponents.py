"""Opponents play legally, reproducibly and as strongly as they say; those that would cheat are refused."""

import itertools
import random

import pyspiel
import pytest
from refusals import refused

from rlnb.games.exact import measure_seat, solve_tictactoe
from rlnb.games.opponents import KNOWN, best_scores, equilibrium, load_opponent, playable_opponents, yardstick
from rlnb.games.text_games import load_game, states_in_play

PAIRS = (
    ("tic_tac_toe", "perfect"),
    ("connect_four", "mcts:10"),
    ("kuhn_poker", "nash"),
    ("goofspiel", "random"),
)


def play(game, players, rng):
    """Returns of one game, and the actions of both seats; chance from rng too."""
    state, actions = game.new_state(), []
    while not state.is_terminal():
        if state.is_chance_node():
            outcomes, probabilities = zip(*state.chance_outcomes(), strict=True)
            action = rng.choices(outcomes, probabilities)[0]
        else:
            (action,) = players[state.current_player()].act([state], [rng])
            actions.append(action)
        game.apply(state, action)
    return state.returns(), actions


def states_on_the_way(game, count):
    """States of random games in which somebody is to move. Seed 0."""
    states = states_in_play(game, count, rng=random.Random(0))
    return [state.clone() for state in itertools.islice(states, count)]


@pytest.mark.parametrize(("game", "opponent"), PAIRS)
def test_an_opponent_plays_to_the_end_the_same_again_and_alone_as_with_others(game, opponent):
    game = load_game(game)
    player = load_opponent(opponent, game)
    first, again = (
        [play(game, (player, player), random.Random(seed)) for seed in range(5)] for _ in range(2)
    )
    assert first == again
    assert len({str(actions) for _, actions in first}) > 1
    states = states_on_the_way(game, 12)
    together = player.act(states, [random.Random(seed) for seed in range(12)])
    alone = [player.act([state], [random.Random(seed)])[0] for seed, state in enumerate(states)]
    assert together == alone
    assert all(action in state.legal_actions() for action, state in zip(together, states, strict=True))


def test_perfect_play_never_loses_and_uses_all_equal_moves():
    game = load_game("tic_tac_toe")
    perfect = load_opponent("perfect", game)
    for opponent in ("random", "mcts:50"):
        other = load_opponent(opponent, game)
        for seed in range(100):
            assert play(game, (perfect, other), random.Random(seed))[0][0] >= 0, f"seed {seed}"
            assert play(game, (other, perfect), random.Random(seed))[0][1] >= 0, f"seed {seed}"
    rng = random.Random(0)
    assert set(perfect.act([game.new_state()] * 200, [rng] * 200)) == set(range(9))


@pytest.mark.parametrize(
    ("game", "exploitability"),
    [
        ("kuhn_poker", 1e-4),
        pytest.param("leduc_poker", 1e-3, marks=pytest.mark.slow),
        pytest.param("liars_dice", 0.015, marks=pytest.mark.slow),
    ],
)
def test_equilibria_are_near(game, exploitability):
    loaded = load_game(game)
    assert pyspiel.exploitability(loaded.game, equilibrium(str(loaded.game))) < exploitability


@pytest.mark.parametrize(
    ("name", "game", "reason"),
    [
        ("mcts:200", "liars_dice", "MCTS sees what the other player hides"),
        ("perfect", "connect_four", "only tic_tac_toe is solved"),
        ("nash", "liars_dice(numdice=2)", "with one die each have a table"),
        ("minimax", "tic_tac_toe", "is no opponent"),
        *((name, "nim", "simulations") for name in ("mcts:", "mcts:1", "mcts:1000001", "mcts:N")),
    ],
)
def test_an_opponent_that_cannot_play_is_refused(name, game, reason):
    said = refused(load_opponent, name, load_game(game), field="opponents")
    assert said.startswith(f"opponents = {name!r} ") and reason in said


def test_opponents_that_would_cheat_in_a_game_are_left_out_of_it():
    names = ("random", "mcts:10", "perfect", "nash")
    assert playable_opponents(load_game("kuhn_poker"), names) == ("random", "nash")
    assert playable_opponents(load_game("tic_tac_toe"), names) == names[:3]


def test_the_best_score_is_that_against_this_opponent():
    game = load_game("tic_tac_toe")
    assert best_scores(game, "random") == KNOWN["tic_tac_toe", "random"].best_score
    assert (best_scores(game, "perfect"), best_scores(game, "mcts:2")) == ((0.5, 0.5), None)


def score(value):
    return 1.0 if value > 0 else 0.5 if value == 0 else 0.0


def at_random(state):
    actions = state.legal_actions()
    return [(action, 1 / len(actions)) for action in actions]


def mean_score(state, policies, seat):
    """Return the mean score of a seat, by all histories. policies: of both seats."""
    if state.is_terminal():
        return score(state.returns()[seat])
    shares = state.chance_outcomes() if state.is_chance_node() else policies[state.current_player()](state)
    return sum(share * mean_score(state.child(action), policies, seat) for action, share in shares)


def best_against(policy, starts, seat):
    """Return the most that a player without knowledge of what is hidden gets against the policy.

    policy: a function of a state: the probabilities of its actions. starts: (state, its probability) that
    the player cannot tell apart.
    """
    total, undecided, waiting = 0.0, {}, list(starts)
    while waiting:
        state, weight = waiting.pop()
        if state.is_terminal():
            total += weight * score(state.returns()[seat])
        elif state.current_player() == seat:
            undecided.setdefault(state.information_state_string(), []).append((state, weight))
        else:
            shares = state.chance_outcomes() if state.is_chance_node() else policy(state)
            waiting += [(state.child(action), weight * share) for action, share in shares]
    for alike in undecided.values():
        total += max(
            best_against(policy, [(state.child(action), weight) for state, weight in alike], seat)
            for action in alike[0][0].legal_actions()
        )
    return total


@pytest.mark.parametrize("name", ["tic_tac_toe", "nim", "dots_and_boxes"])
def test_exact_reference_scores_of_open_games_follow_from_the_rules(name):
    known_means = {}

    def mean(state, seat, worth):
        """Mean worth of a seat's return when it plays its best, the other at random; None: both, seat 0's."""
        if state.is_terminal():
            return worth(state.returns()[seat or 0])
        key = (str(state), state.current_player(), seat, worth)
        if key not in known_means:
            after = [mean(state.child(action), seat, worth) for action in state.legal_actions()]
            is_own = state.current_player() == seat
            known_means[key] = max(after) if is_own else sum(after) / len(after)
        return known_means[key]

    start, known = load_game(name).new_state(), KNOWN[name, "random"]
    assert [mean(start, None, score), 1 - mean(start, None, score)] == pytest.approx(
        known.random_score, abs=1e-5
    )
    assert [mean(start, seat, score) for seat in (0, 1)] == pytest.approx(known.best_score, abs=1e-5)


@pytest.mark.parametrize(
    "name", ["kuhn_poker", "leduc_poker", pytest.param("liars_dice", marks=pytest.mark.slow)]
)
def test_exact_reference_scores_of_hidden_games_follow_from_the_rules(name):
    game, known = load_game(name), KNOWN[name, "random"]
    start = game.new_state()
    at_both = [mean_score(start, (at_random, at_random), seat) for seat in (0, 1)]
    assert at_both == pytest.approx(known.random_score, abs=1e-5)
    best = [best_against(at_random, [(start, 1.0)], seat) for seat in (0, 1)]
    assert best == pytest.approx(known.best_score, abs=1e-5)


@pytest.mark.parametrize(
    "name",
    ["kuhn_poker", *(pytest.param(name, marks=pytest.mark.slow) for name in ("leduc_poker", "liars_dice"))],
)
def test_the_scores_of_random_play_against_an_equilibrium_are_sums_over_the_whole_game(name):
    game = load_game(name)
    table = equilibrium(str(game.game))

    def nash(state):
        return list(table.get_state_policy(state.information_state_string()))

    start, first, second = game.new_state(), (at_random, nash), (nash, at_random)
    scores = [mean_score(start, policies, seat) for seat, policies in enumerate((first, second))]
    assert KNOWN[name, "nash"].random_score == pytest.approx(scores, abs=1e-5)


def test_the_scores_of_random_play_against_perfect_play_follow_from_the_rules():
    uniform = solve_tictactoe().uniform
    scores = [seat.win + seat.draw / 2 for seat in (measure_seat(uniform, 0), measure_seat(uniform, 1))]
    assert KNOWN["tic_tac_toe", "perfect"].random_score == pytest.approx(scores, abs=1e-5)


def test_a_game_is_known_with_its_usual_parameters_however_it_is_written():
    assert yardstick(load_game("kuhn_poker(players=2)"), "random") is KNOWN["kuhn_poker", "random"]
    assert yardstick(load_game("dots_and_boxes(num_cols=3)"), "random") is None
