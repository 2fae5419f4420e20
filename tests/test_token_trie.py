"""The trie lets every legal answer be written, and nothing else."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_actor import tiny_policy

from rlnb.policy.builtin import EMBEDDED_PACKAGE
from rlnb.policy.token_trie import TokenTrie

END = 0
answers = st.lists(
    st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), min_size=1, max_size=12, unique=True
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> object:
    return tiny_policy(tmp_path_factory.mktemp("models")).tokenizer


@pytest.fixture(scope="module")
def embedded_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> object:
    """SmolLM2's, as the embedded model comes with it."""
    import importlib.util

    from transformers import AutoTokenizer

    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {EMBEDDED_PACKAGE} is not installed")
    folder = Path(spec.origin).parent
    return AutoTokenizer.from_pretrained(folder, gguf_file=next(folder.glob("*.gguf")).name)


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
def test_what_can_be_written_is_every_answer_and_nothing_else(sequences):
    trie = TokenTrie.of(sequences, end=END)
    assert written(trie) == set(trie.leaves)
    assert sorted(trie.leaves.values()) == list(range(len(sequences)))
    for leaf, number in trie.leaves.items():
        assert leaf in (sequences[number], (*sequences[number], END))


@given(answers)
def test_no_answer_begins_another_and_only_beginnings_get_the_end_token(sequences):
    trie = TokenTrie.of(sequences, end=END)
    for leaf in trie.leaves:
        assert not any(other != leaf and other[: len(leaf)] == leaf for other in trie.leaves)
        begins = any(other != leaf[:-1] and other[: len(leaf) - 1] == leaf[:-1] for other in sequences)
        assert (leaf[-1] == END) <= begins


@given(answers)
def test_tokens_that_may_follow_come_rising_and_a_branching_is_where_there_are_two(sequences):
    trie = TokenTrie.of(sequences, end=END)
    for prefix, tokens in trie.children.items():
        assert list(tokens) == sorted(set(tokens))
        assert (prefix in trie.branchings) == (len(tokens) > 1)


@given(answers)
def test_forced_goes_on_to_a_branching_or_to_an_answer_and_passes_none(sequences):
    trie = TokenTrie.of(sequences, end=END)
    for prefix in trie.children:
        ahead = trie.forced(prefix)
        assert ahead[: len(prefix)] == prefix
        assert ahead in trie.leaves or ahead in trie.branchings
        assert not any(ahead[:count] in trie.branchings for count in range(len(prefix), len(ahead)))


def test_1_beside_12_ends_with_the_end_token_and_2_beside_12_does_not():
    trie = TokenTrie.of([(1,), (1, 2), (2,)], end=END)
    assert trie.leaves == {(1, END): 0, (1, 2): 1, (2,): 2}
    assert trie.children == {(): (1, 2), (1,): (END, 2)}
    assert trie.branchings == ((), (1,))


def test_tokens_without_an_alternative_are_passed_at_once():
    trie = TokenTrie.of([(1, 2, 3), (1, 2, 4, 5)], end=END)
    assert trie.forced(()) == (1, 2)
    assert trie.forced((1, 2)) == (1, 2)
    assert trie.forced((1, 2, 4)) == (1, 2, 4, 5)
    assert TokenTrie.of([(3, 4)], end=END).forced(()) == (3, 4)


@pytest.mark.parametrize("sequences", [[(1,), (1,)], [(1,), ()], [(1,), (1, END)], [(END,)]])
def test_answers_that_cannot_be_told_apart_are_refused(sequences):
    with pytest.raises(ValueError) as error:
        TokenTrie.of(sequences, end=END)
    assert str(error.value) == "two answers have the same tokens, or one has none or the end token"


@settings(max_examples=60, deadline=None)
@given(legal=st.sets(st.integers(0, 2000), min_size=1, max_size=30))
@pytest.mark.parametrize("which", ["tokenizer", "embedded_tokenizer"])
def test_a_mask_never_lets_an_illegal_action_through(which, legal, request):
    tokenizer = request.getfixturevalue(which)
    actions = sorted(legal)
    ids = tokenizer([str(action) for action in actions], add_special_tokens=False)["input_ids"]
    trie = TokenTrie.of(ids, end=tokenizer.eos_token_id)
    texts = {leaf: tokenizer.decode(leaf, skip_special_tokens=True) for leaf in written(trie)}
    assert {leaf: int(text) for leaf, text in texts.items()} == {
        leaf: actions[number] for leaf, number in trie.leaves.items()
    }
    assert len(texts) == len(actions)
