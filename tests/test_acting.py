"""How the model acts: exactly as its probabilities say, among legal answers only, the same in any company."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from pytest import approx
from tiny_actor import encoder, played, tiny_actor

from rlnb.games.text_games import load_game
from rlnb.policy.acting import ConstrainedPlayer, FreePlayer
from rlnb.policy.generation import RowNoise, generate_ids
from rlnb.rollouts import play_games, self_play
from rlnb.training.batches import make_batch
from rlnb.training.losses import read_all
from rlnb.trajectories import Request, turns_of

# Of 3 and of 7 degrees of freedom; a right sampler exceeds them once in ten thousand seeds.
CHI_SQUARE = {3: 21.1, 7: 29.9}
PROMPT = "x:\nxo2\n3x5\n678\n?"


@pytest.fixture(scope="module")
def actor(tmp_path_factory: pytest.TempPathFactory):
    return tiny_actor(tmp_path_factory.mktemp("models"), has_value=True)


@pytest.fixture(scope="module")
def games(actor):
    """Nim has ids of one and of two digits, one of which begins another."""
    return {name: played(actor, name, 6) for name in ("tic_tac_toe", "nim", "kuhn_poker")}


def request(legal, *, prompt=PROMPT, seed=0) -> Request:
    return Request(prompt, tuple(legal), 0, random.Random(seed), lambda text: (None, "no_action"))


def next_logits(actor, ids) -> torch.Tensor:
    """By the language model itself, float64 (vocabulary,)."""
    with torch.no_grad():
        return actor.policy.model(input_ids=torch.tensor([list(ids)])).logits[0, -1].double()


def by_hand(actor, legal, *, temperature=1.0, prompt=PROMPT) -> np.ndarray:
    """Of ids of digits: product along the way, each token among the bytes that still lead to a legal id."""
    tokenizer, shares = actor.policy.tokenizer, []
    texts = [str(action) for action in legal]
    for text in texts:
        product, ends = 1.0, [*text, ""]
        for count in range(len(text) + 1):
            after = {other[count : count + 1] for other in texts if other[:count] == text[:count]}
            if len(after) == 1:
                continue
            columns = {sign: tokenizer.convert_tokens_to_ids(sign or "<|im_end|>") for sign in sorted(after)}
            logits = next_logits(actor, tokenizer(prompt + text[:count])["input_ids"])
            softmax = (logits[list(columns.values())] / temperature).softmax(-1)
            product *= float(softmax[list(columns).index(ends[count])])
        shares.append(product)
    return np.array(shares)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_probabilities_are_the_models_own_among_the_legal_ids(actor, temperature):
    player = ConstrainedPlayer(actor, encoder(actor), temperature=temperature)
    legal = (2, 3, 5, 8)
    (turn,) = player.answer([request(legal)])
    expected = by_hand(actor, legal, temperature=temperature)
    assert turn.probabilities == approx(expected, rel=1e-5)
    assert sum(turn.probabilities) == approx(1.0)
    assert player.probabilities([PROMPT], [legal])[0] == approx(expected, rel=1e-5)
    assert turn.logprobs == approx([np.log(expected[legal.index(turn.action)])], rel=1e-4)
    assert max(expected) > 2 * min(expected)  # else this test tells little


def test_ids_of_several_tokens_have_the_product_of_what_is_chosen_on_the_way(actor):
    legal = (1, 3, 12, 13, 125, 200, 201)
    (found,) = ConstrainedPlayer(actor, encoder(actor)).probabilities([PROMPT], [legal])
    assert found == approx(by_hand(actor, legal), rel=1e-5)
    assert found.sum() == approx(1.0)


def chi_square(counts, shares) -> float:
    expected = np.asarray(shares) * sum(counts)
    assert expected.min() > 5  # else the statistic is not what its table says
    return float(((np.asarray(counts) - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("legal", [(2, 3, 5, 8), (1, 3, 12, 13)])
def test_actions_are_played_as_often_as_their_probabilities_say(actor, legal):
    player = ConstrainedPlayer(actor, encoder(actor))
    turns = player.answer([request(legal, seed=seed) for seed in range(6000)])
    counts = [sum(turn.action == action for turn in turns) for action in legal]
    (shares,) = player.probabilities([PROMPT], [legal])
    assert chi_square(counts, shares) < CHI_SQUARE[3], (counts, shares)
    for turn in turns[:50]:
        assert sum(turn.logprobs) == approx(np.log(shares[legal.index(turn.action)]), rel=1e-4)


def test_greedy_takes_the_likeliest_token_and_leaves_the_random_state_alone(actor):
    legal = (2, 3, 5, 8)
    player = ConstrainedPlayer(actor, encoder(actor), greedy=True)
    asked = [request(legal, seed=seed) for seed in range(5)]
    expected = legal[int(by_hand(actor, legal).argmax())]
    assert [turn.action for turn in player.answer(asked)] == [expected] * 5
    assert [one.random.getstate() for one in asked] == [random.Random(seed).getstate() for seed in range(5)]


def test_a_legal_action_alone_is_no_choice_and_draws_nothing(actor):
    one = request((12,))
    (turn,) = ConstrainedPlayer(actor, encoder(actor)).answer([one])
    assert (turn.action, turn.choices, turn.logprobs, turn.text) == (12, (), (), "12")
    assert np.isnan(turn.legal_mass)
    assert turn.value != 0.0
    assert one.random.getstate() == random.Random(0).getstate()


def test_forced_tokens_are_no_choices(actor):
    # 1 and 1x: the first digit is forced; after it the end token, 2 or 3; after 2, nothing or another digit.
    (turn,) = ConstrainedPlayer(actor, encoder(actor)).answer([request((125, 134))])
    (choice,) = turn.choices
    tokens = actor.policy.tokenizer("23", add_special_tokens=False)["input_ids"]
    assert choice.position == len(turn.prompt_ids) + 1
    assert choice.allowed == tuple(sorted(tokens))
    assert actor.policy.tokenizer.decode(turn.completion_ids) == str(turn.action)


def test_what_an_unconstrained_policy_gives_to_the_legal_answers_is_reported(actor):
    legal = (2, 3, 5, 8)
    (turn,) = ConstrainedPlayer(actor, encoder(actor), temperature=0.5).answer([request(legal)])
    tokenizer = actor.policy.tokenizer
    softmax = next_logits(actor, tokenizer(PROMPT)["input_ids"]).softmax(-1)
    ids = tokenizer("".join(map(str, legal)), add_special_tokens=False)["input_ids"]
    assert turn.legal_mass == approx(float(softmax[ids].sum()), rel=1e-4)
    assert turn.legal_mass < 0.5


def same_turns(first, second) -> None:
    for one, other in zip(turns_of(first), turns_of(second), strict=True):
        assert one.completion_ids == other.completion_ids
        assert one.logprobs == approx(other.logprobs, abs=1e-5)
        assert one.value == approx(other.value, abs=1e-5)
        assert one.probabilities == approx(other.probabilities, abs=1e-6)


def trajectories(games):
    return [one for game in games for one in game.trajectories]


@pytest.mark.parametrize("name", ["kuhn_poker", "nim"])
def test_the_memo_changes_no_turn(actor, name):
    episodes = self_play(load_game(name, style="compact"), 12, seed=5)
    kept, plain = (
        play_games(episodes, {"policy": ConstrainedPlayer(actor, encoder(actor), memo=memo)})
        for memo in (True, False)
    )
    assert [game.history for game in kept] == [game.history for game in plain]
    same_turns(trajectories(kept), trajectories(plain))


def test_the_memo_is_forgotten_when_it_is_told_to(actor):
    player = ConstrainedPlayer(actor, encoder(actor))
    weight = actor.policy.model.get_output_embeddings().weight
    (before,) = player.answer([request((2, 3))])
    with torch.no_grad():
        weight.mul_(0.5)
    try:
        (stale,) = player.answer([request((2, 3))])
        player.forget()
        (fresh,) = player.answer([request((2, 3))])
    finally:
        with torch.no_grad():
            weight.mul_(2.0)
    assert stale.probabilities == before.probabilities
    assert fresh.probabilities != approx(before.probabilities, abs=1e-3)


@pytest.mark.parametrize("is_free", [False, True])
def test_a_game_is_the_same_whatever_is_played_beside_it(actor, is_free):
    game = load_game("nim" if not is_free else "tic_tac_toe", style="compact")
    episodes = self_play(game, 6, seed=8)

    def histories(chosen, **options):
        player = (
            FreePlayer(actor, encoder(actor), temperature=1.0, max_new_tokens=4)
            if is_free
            else ConstrainedPlayer(actor, encoder(actor))
        )
        found = play_games(chosen, {"policy": player}, **options)
        return [(one.history, [turn.text for turn in turns_of(one.trajectories)]) for one in found]

    together = histories(episodes)
    assert together == [histories([one])[0] for one in episodes]
    assert together == histories(episodes, num_parallel=2)
    assert len({str(one) for one in together}) > 1


def test_the_training_pass_reads_the_logprobs_and_values_that_were_played(actor, games):
    for name, some in games.items():
        turns = turns_of(trajectories(some))
        nothing = np.zeros(len(turns))
        found = read_all(actor, make_batch(turns, nothing, nothing), temperature=1.0, max_tokens=4096)
        played_logprobs = [value for turn in turns for value in turn.logprobs]
        assert found.token_logprobs.numpy() == approx(played_logprobs, abs=1e-5), name
        assert found.values.numpy() == approx([turn.value for turn in turns], abs=1e-5), name
        assert len(played_logprobs) >= 10


def test_nim_here_has_choices_of_more_than_one_token(games):
    lengths = {len(turn.choices) for turn in turns_of(trajectories(games["nim"]))}
    assert max(lengths) >= 2, lengths  # else the tests above say nothing about them


def test_a_value_knows_nothing_of_the_answer(actor, games):
    turns = [turn for turn in turns_of(trajectories(games["nim"])) if len(turn.choices) >= 2]
    other = [
        replace(turn, completion_ids=(turn.completion_ids[0] + 1, *turn.completion_ids[1:])) for turn in turns
    ]
    nothing = np.zeros(len(turns))
    first, second = (
        read_all(actor, make_batch(some, nothing, nothing), temperature=1.0, max_tokens=4096)
        for some in (turns, other)
    )
    assert first.values.numpy() == approx(second.values.numpy(), abs=1e-6)
    assert first.token_logprobs.numpy() != approx(second.token_logprobs.numpy(), abs=1e-3)


def test_free_answers_are_drawn_from_the_softmax_at_the_temperature(actor):
    tokenizer, temperature = actor.policy.tokenizer, 0.7
    written = generate_ids(
        actor.policy, [PROMPT] * 4000, max_new_tokens=1, temperature=temperature,
        row_seeds=range(4000), batch_size=500,
    )  # fmt: skip
    softmax = (next_logits(actor, tokenizer(PROMPT)["input_ids"]) / temperature).softmax(-1)
    top = softmax.topk(7)
    counts = [sum(one[0] == token for one in written) for token in top.indices.tolist()]
    shares = [*top.values.tolist(), 1 - float(top.values.sum())]
    assert chi_square([*counts, 4000 - sum(counts)], shares) < CHI_SQUARE[7], (counts, shares)


def test_a_penalty_that_came_with_the_model_does_not_change_what_is_trained_on(actor):
    config = actor.policy.model.generation_config
    options = {"max_new_tokens": 12, "temperature": 0.7, "row_seeds": range(8)}
    expected = generate_ids(actor.policy, ["0000000000?"] * 8, **options)
    config.repetition_penalty = 5.0
    try:
        assert generate_ids(actor.policy, ["0000000000?"] * 8, **options) == expected
    finally:
        config.repetition_penalty = None


def test_the_noise_of_a_row_is_its_own():
    scores = torch.zeros(2, 50)
    first = RowNoise([7, 8], 1.0, torch.device("cpu"))(None, scores)
    second = RowNoise([9, 7], 1.0, torch.device("cpu"))(None, scores)
    assert torch.equal(first[0], second[1])
    assert not torch.equal(first[0], first[1])


def test_free_answers_at_temperature_0_are_the_likeliest_tokens(actor):
    tokenizer = actor.policy.tokenizer
    (written,) = generate_ids(actor.policy, [PROMPT], max_new_tokens=5, temperature=0.0, row_seeds=[0])
    ids = list(tokenizer(PROMPT)["input_ids"])
    for token in written:
        assert token == int(next_logits(actor, ids).argmax())
        ids.append(token)
    assert len(written) >= 2


def test_a_free_turn_holds_every_token_as_a_choice_among_all(actor):
    player = FreePlayer(actor, encoder(actor), temperature=1.0, max_new_tokens=6)
    (turn,) = player.answer([request((2, 3))])
    start = len(turn.prompt_ids)
    assert [choice.token for choice in turn.choices] == list(turn.completion_ids)
    assert [choice.position for choice in turn.choices] == list(range(start, start + len(turn.choices)))
    assert {choice.allowed for choice in turn.choices} == {()}
    assert (turn.action, turn.problem) == (None, "no_action")
    (alone,) = ConstrainedPlayer(actor, encoder(actor)).answer([request((2, 3))])
    assert turn.value == approx(alone.value, abs=1e-5) and turn.value != 0.0
