"""How the model acts: exactly as its probabilities say, among legal answers only, the same in any company."""

import json
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from tiny_actor import make_encoder, played, tiny_actor
from tiny_policy import load_tiny, train_by_hand
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from rlnb.games.answers import ParsedAnswer
from rlnb.games.text_games import load_game
from rlnb.policy import save_adapters
from rlnb.selfplay.acting import ActorCritic, ConstrainedPlayer, FreePlayer, TokenTrie, float32_product
from rlnb.selfplay.batch import compute_logprobs, make_batch
from rlnb.selfplay.rollouts import (
    Request,
    collect_trajectories,
    collect_turns,
    play_games,
    self_play_episodes,
)

CHI_SQUARE = 21.1  # of 3 degrees of freedom; a right sampler exceeds it once in ten thousand seeds
PROMPT = "x:\nxo2\n3x5\n678\n?"


@pytest.fixture(scope="module")
def actor(cache_dir):
    return tiny_actor(cache_dir, has_value=True)


@pytest.fixture(scope="module")
def turns(actor):
    """Nim has ids of one and of two digits, one of which begins another."""
    by_game = {
        name: collect_turns(collect_trajectories(played(actor, name, 6)))
        for name in ("tic_tac_toe", "nim", "kuhn_poker")
    }
    assert max(len(turn.choices) for turn in by_game["nim"]) >= 2  # else nim adds nothing
    return by_game


def request(legal, *, prompt=PROMPT, seed=0) -> Request:
    return Request(
        prompt, tuple(legal), 0, random.Random(seed), lambda text, **_: ParsedAnswer(None, "no_action", "")
    )


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


@pytest.mark.parametrize("legal", [(2, 3, 5, 8), (1, 3, 12, 13, 125, 200, 201)])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_probabilities_are_the_models_own_among_the_legal_ids(actor, temperature, legal):
    """Ids of several tokens have the product of what is chosen on the way."""
    player = ConstrainedPlayer(actor, make_encoder(actor), temperature=temperature)
    (turn,) = player.answer([request(legal)])
    expected = by_hand(actor, legal, temperature=temperature)
    assert turn.probabilities == (approx(expected, rel=1e-5) if max(legal) < 10 else ())
    assert player.probabilities([PROMPT], [legal])[0] == approx(expected, rel=1e-5)
    assert sum(expected) == approx(1.0)
    assert sum(turn.logprobs) == approx(np.log(expected[legal.index(turn.action)]), rel=1e-4)
    assert max(expected) > 2 * min(expected)  # else this test tells little


def chi_square(counts, shares) -> float:
    expected = np.asarray(shares) * sum(counts)
    assert expected.min() > 5  # else the statistic is not what its table says
    return float(((np.asarray(counts) - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("legal", [(2, 3, 5, 8), (1, 3, 12, 13)])
def test_actions_are_played_as_often_as_their_probabilities_say(actor, legal):
    player = ConstrainedPlayer(actor, make_encoder(actor))
    turns = player.answer([request(legal, seed=seed) for seed in range(6000)])
    counts = [sum(turn.action == action for turn in turns) for action in legal]
    (shares,) = player.probabilities([PROMPT], [legal])
    assert chi_square(counts, shares) < CHI_SQUARE, (counts, shares)
    for turn in turns[:50]:
        assert sum(turn.logprobs) == approx(np.log(shares[legal.index(turn.action)]), rel=1e-4)


def test_a_legal_action_alone_is_no_choice_and_draws_nothing(actor):
    only_request = request((12,))
    (turn,) = ConstrainedPlayer(actor, make_encoder(actor)).answer([only_request])
    assert (turn.action, turn.choices, turn.logprobs, turn.text) == (12, (), (), "12")
    assert np.isnan(turn.legal_mass)
    assert turn.value != 0.0
    assert only_request.random.getstate() == random.Random(0).getstate()


def test_what_an_unconstrained_policy_gives_to_the_legal_answers_is_reported(actor):
    legal = (2, 3, 5, 8)
    (turn,) = ConstrainedPlayer(actor, make_encoder(actor), temperature=0.5).answer([request(legal)])
    tokenizer = actor.policy.tokenizer
    softmax = next_logits(actor, tokenizer(PROMPT)["input_ids"]).softmax(-1)
    ids = tokenizer("".join(map(str, legal)), add_special_tokens=False)["input_ids"]
    assert turn.legal_mass == approx(float(softmax[ids].sum()), rel=1e-4)
    assert turn.legal_mass < 0.5


def test_equal_positions_are_passed_once(actor, monkeypatch):
    passed, hidden = [], ActorCritic.hidden
    monkeypatch.setattr(
        ActorCritic, "hidden", lambda self, sequences: passed.extend(sequences) or hidden(self, sequences)
    )
    turns = ConstrainedPlayer(actor, make_encoder(actor)).answer([request((2, 3, 5))] * 3)
    assert len(passed) == 1 and len(turns) == 3


@pytest.mark.parametrize("is_free", [False, True])
def test_a_game_is_the_same_whatever_is_played_beside_it(actor, is_free):
    game = load_game("nim" if not is_free else "tic_tac_toe", style="compact")
    episodes = self_play_episodes(game, 6, seed=8)

    def histories(chosen, **options):
        player = (
            FreePlayer(actor, make_encoder(actor), temperature=1.0, max_new_tokens=4)
            if is_free
            else ConstrainedPlayer(actor, make_encoder(actor))
        )
        games = play_games(chosen, {"policy": player}, **options)
        return [(game.history, [turn.text for turn in collect_turns(game.trajectories)]) for game in games]

    together = histories(episodes)
    assert together == [histories([game])[0] for game in episodes]
    assert together == histories(episodes, num_parallel=2)
    assert len({str(game) for game in together}) > 1


@pytest.mark.parametrize("name", ["tic_tac_toe", "nim", "kuhn_poker"])
def test_the_training_pass_reads_the_logprobs_and_values_that_were_played(actor, turns, name):
    batch = make_batch(turns[name], np.zeros(len(turns[name])), None)
    with torch.no_grad():
        computed = compute_logprobs(actor, batch, temperature=1.0)
    logprobs = [value for turn in turns[name] for value in turn.logprobs]
    chosen = computed.logprobs_bt[batch.mask_bt]
    assert chosen.tolist() == approx(logprobs, abs=1e-5)
    assert computed.values_b.tolist() == approx([turn.value for turn in turns[name]], abs=1e-5)
    assert len(logprobs) >= 10


def test_a_free_turn_holds_every_token_as_a_choice_among_all(actor):
    player = FreePlayer(actor, make_encoder(actor), temperature=1.0, max_new_tokens=6)
    (turn,) = player.answer([request((2, 3))])
    start = len(turn.prompt_ids)
    assert [choice.token for choice in turn.choices] == list(turn.completion_ids)
    assert [choice.position for choice in turn.choices] == list(range(start, start + len(turn.choices)))
    assert {choice.allowed for choice in turn.choices} == {()}
    assert (turn.action, turn.problem) == (None, "no_action")
    (alone,) = ConstrainedPlayer(actor, make_encoder(actor)).answer([request((2, 3))])
    assert turn.value == approx(alone.value, abs=1e-5) and turn.value != 0.0


def test_a_free_answer_is_cut_where_the_limit_ends_it(actor):
    game = load_game("tic_tac_toe", style="compact", asks_for_thoughts=True)
    player = FreePlayer(actor, make_encoder(actor), temperature=1.0, max_new_tokens=40)
    games = play_games(self_play_episodes(game, 16, seed=2), {"policy": player})
    ends = actor.policy.model.generation_config.eos_token_id
    turns = [turn for game in games for turn in collect_turns(game.trajectories)]
    assert {turn.problem == "cut" for turn in turns} == {True, False}
    for turn in turns:
        assert (turn.problem == "cut") == (turn.completion_ids[-1] not in ends), turn.text


END = 0
answers = st.lists(
    st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), min_size=1, max_size=12, unique=True
)


def written(trie: TokenTrie) -> set[tuple[int, ...]]:
    """Every sequence that can come of going on with allowed tokens until there are none."""
    open_prefixes, done = [()], set()
    while open_prefixes:
        prefix = open_prefixes.pop()
        following = trie.children.get(prefix, ())
        open_prefixes += [(*prefix, token) for token in following]
        if not following:
            done.add(prefix)
    return done


@given(answers)
def test_every_answer_can_be_written_and_nothing_else(sequences):
    trie = TokenTrie.build(sequences, end=END)
    assert written(trie) == set(trie.leaves)
    assert sorted(trie.leaves.values()) == list(range(len(sequences)))
    for leaf, index in trie.leaves.items():
        assert leaf in (sequences[index], (*sequences[index], END))
        begins = any(other != leaf[:-1] and other[: len(leaf) - 1] == leaf[:-1] for other in sequences)
        assert (leaf[-1] == END) <= begins  # the end token where an answer begins another
    for prefix, tokens in trie.children.items():
        assert list(tokens) == sorted(set(tokens))
        assert (prefix in trie.branchings) == (len(tokens) > 1)


@settings(max_examples=60)
@given(legal=st.sets(st.integers(0, 2000), min_size=1, max_size=30))
def test_a_mask_never_lets_an_illegal_action_through(legal, actor):
    tokenizer, actions = actor.policy.tokenizer, sorted(legal)
    ids = tokenizer([str(action) for action in actions], add_special_tokens=False)["input_ids"]
    trie = TokenTrie.build(ids, end=tokenizer.eos_token_id)
    texts = {leaf: tokenizer.decode(leaf, skip_special_tokens=True) for leaf in written(trie)}
    assert {leaf: int(text) for leaf, text in texts.items()} == {
        leaf: actions[index] for leaf, index in trie.leaves.items()
    }
    assert len(texts) == len(actions)


def test_logits_of_16_bit_weights_are_float32_products_without_a_float32_copy_of_the_head(
    cache_dir, monkeypatch
):
    monkeypatch.setattr("rlnb.selfplay.acting.ROWS_IN_FLOAT32", 100)  # of 259
    actor = tiny_actor(cache_dir, dtype="bfloat16")
    hidden = torch.randn(5, 128, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    weight, kept = actor.unembed.weight, []
    exact = hidden.detach().double() @ weight.detach().double().T
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor) or tensor, torch.clone
    )
    with hooks:
        logits = actor.logits(hidden)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), exact, rtol=1e-6, atol=1e-6)
    assert not [tensor for tensor in kept if tensor.dtype == torch.float32 and tensor.shape[-1] == 128]
    slope = torch.randn(exact.shape, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad(logits, hidden, slope)
    torch.testing.assert_close(gradient.double(), slope.double() @ weight.double(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("learns", [False, True])
def test_a_gpu_makes_no_float32_copy_of_the_head_unless_it_needs_a_gradient(learns):
    """On tensors of no size in memory, which say cuda also without a GPU."""

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            calls.append(str(function))
            return function(*arguments, **(options or {}))

    for device in ("cpu", "cuda"):
        calls: list[str] = []
        with FakeTensorMode(), Calls(), torch.set_grad_enabled(learns):
            hidden, weight = (torch.empty(rows, 8, dtype=torch.bfloat16, device=device) for rows in (3, 5))
            logits = float32_product(hidden, weight)
        assert (logits.dtype, logits.shape, logits.device.type) == (torch.float32, (3, 5), device)
        assert ("aten._to_copy.default" in calls) == (device == "cpu" or learns)


def test_dropout_of_saved_adapters_is_off_since_a_turn_is_passed_twice(cache_dir, tmp_path):
    policy = load_tiny(cache_dir)
    train_by_hand(policy)
    folder = save_adapters(policy, tmp_path / "adapters")
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"lora_dropout": 0.5}))
    actor = ActorCritic(load_tiny(cache_dir, adapters=str(folder)), has_value=False)
    for module in actor.policy.model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    actor = ActorCritic(actor.policy, has_value=False)
    actor.policy.model.train()
    actor.check_logits()
    ids = torch.arange(40, 60)[None]
    assert torch.equal(actor.hidden(ids), actor.hidden(ids))
