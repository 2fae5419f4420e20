"""What a run keeps for its export: positions, and whether the policy still chooses the same in them."""

from pathlib import Path

import pytest
import torch
from ppo_run import params_of, train_run

from rlnb.games.text_games import load_game
from rlnb.policy import Policy, load_policy
from rlnb.policy.export import load_for_export, reload, save_in_format
from rlnb.run.checkpoints import latest_checkpoint
from rlnb.selfplay.acting import make_encoder
from rlnb.selfplay.decisions import (
    FILE,
    Agreement,
    Decision,
    compare_actions,
    compute_probabilities,
    count_equal_texts,
    draw_decisions,
    load_decisions,
    save_decisions,
)

LORA = {"lora_rank": 4, "dtype": "float32", "engine": "transformers"}


@pytest.fixture(scope="module")
def run(cache_dir, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a PPO run of adapters, four large updates."""
    directory = tmp_path_factory.mktemp("run")
    rates = {"learning_rate": 0.05, "final_learning_rate": 0.05, "target_kl": 0.0, "kl_target": 0.0}
    params = params_of(cache_dir, model=dict(LORA), training={"max_steps": 4, **rates})
    train_run(
        params.model_copy(update={"alarms": params.alarms.model_copy(update={"patience": 9})}), directory
    )
    return directory


def drawn(cache_dir: Path, *names: str, count: int = 50) -> list[Decision]:
    params = params_of(cache_dir, model=dict(LORA))
    encoder = make_encoder(params.game, load_policy(params.model).tokenizer, thinking=False)
    return draw_decisions([load_game(name, style="compact") for name in names], encoder, count=count)


def test_positions_are_distinct_have_a_choice_and_are_of_all_games(cache_dir):
    decisions = drawn(cache_dir, "tic_tac_toe", "nim")
    assert len(decisions) == len({(decision.game, decision.text) for decision in decisions}) == 50
    assert [decision.game for decision in decisions[:4]] == [
        load_game(name).name for name in ("tic_tac_toe", "nim")
    ] * 2
    assert all(len(decision.legal_actions) > 1 for decision in decisions)
    assert decisions == drawn(cache_dir, "tic_tac_toe", "nim")


def test_a_game_of_few_positions_gives_those_that_it_has(cache_dir):
    decisions = drawn(cache_dir, "kuhn_poker", "tic_tac_toe", count=40)
    of_kuhn = [decision for decision in decisions if decision.game == "kuhn_poker"]
    assert (len(of_kuhn), len(decisions)) == (12, 40)


def test_a_run_keeps_its_positions_for_its_adapters_and_checkpoints(cache_dir, tmp_path):
    kept = drawn(cache_dir, "nim", count=5)
    save_decisions(tmp_path, kept)
    for place in (tmp_path, tmp_path / "adapters", tmp_path / "checkpoints" / "checkpoint-4"):
        assert load_decisions(place) == kept
    (tmp_path / FILE).unlink()
    assert load_decisions(tmp_path / "adapters") == load_decisions("") == []


def test_policies_agree_where_the_likeliest_action_is_the_same():
    first = [[0.5, 0.3, 0.2], [0.1, 0.9], [0.6, 0.4], [0.3, 0.7]]
    second = [[0.4, 0.35, 0.25], [0.6, 0.4], [0.45, 0.55], [0.2, 0.8]]
    agreement = compare_actions(first, second)
    assert (agreement.num_same, agreement.num_positions) == (2, 4)
    assert agreement.margin == pytest.approx(0.8)  # the second: 0.9 beside 0.1
    assert compare_actions([], []) == Agreement(0, 0, 0.0)


def test_what_is_exported_of_a_checkpoint_plays_as_it_did(cache_dir, run, tmp_path):
    params = params_of(cache_dir, model=dict(LORA)).model
    kept = drawn(cache_dir, "tic_tac_toe", "nim", "kuhn_poker")
    params = params.model_copy(update={"adapters": latest_checkpoint(run)})
    policy = load_for_export(params)
    before = compute_probabilities(policy, kept)
    untrained = compute_probabilities(load_policy(params.model_copy(update={"adapters": ""})), kept)
    assert compare_actions(before, untrained).num_same < 40  # the adapters play another game
    for form in ("lora", "merged_16bit"):
        directory = save_in_format(policy, tmp_path / form, form, params)
        again = reload(directory, form, params)
        agreement = compare_actions(before, compute_probabilities(again, kept))
        assert agreement.num_positions == 50
        # bfloat16 moves these probabilities by 0.001 at most (seeds 0 to 5), so near ties alone may turn.
        assert agreement.num_same == 50 if form == "lora" else agreement.margin < 0.005
        assert has_no_head(again, directory)
        assert again.tokenizer.chat_template == policy.tokenizer.chat_template
        assert count_equal_texts(again, kept) == 50


def has_no_head(policy: Policy, directory: Path) -> bool:
    names = [name for name, _ in policy.model.named_parameters()]
    return not any("value" in name and "head" in name for name in names) and not list(
        directory.glob("value*")
    )


def test_a_lost_chat_template_is_seen(cache_dir):
    params = params_of(cache_dir, model=dict(LORA), game={"style": "full"})
    policy = load_policy(params.model)
    policy.tokenizer.chat_template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    kept = draw_decisions(
        [load_game("nim")], make_encoder(params.game, policy.tokenizer, thinking=False), count=4
    )
    assert kept[0].text == f"<{kept[0].prompt}>" and count_equal_texts(policy, kept) == 4
    policy.tokenizer.chat_template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    assert count_equal_texts(policy, kept) == 0


def test_probabilities_are_those_of_the_next_token(cache_dir):
    (decision,) = drawn(cache_dir, "tic_tac_toe", count=1)  # ids of one byte, one token each
    policy = load_policy(params_of(cache_dir, model=dict(LORA)).model)
    (probabilities,) = compute_probabilities(policy, [decision])
    ids = policy.tokenizer(decision.text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = policy.model(ids).logits[0, -1].double()
    tokens = [policy.tokenizer(str(action))["input_ids"][-1] for action in decision.legal_actions]
    assert probabilities == pytest.approx(torch.softmax(logits[tokens], dim=0).tolist(), abs=1e-5)
