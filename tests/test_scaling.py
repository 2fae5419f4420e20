"""The page of scaling shows what the code estimates, and the estimate obeys the arithmetic it states."""

from dataclasses import replace
from pathlib import Path

import pytest
import scaling as benchmark

from rlnb.machine import recommend
from rlnb.params import load_params, resolve
from rlnb.run.model_sizes import ModelSizes, load_model_sizes
from rlnb.run.scaling import (
    COMPUTE_SHARE,
    LAUNCH_SECONDS,
    READ_SHARE,
    Hardware,
    estimate_efficiency,
    estimate_step,
    exchange_seconds,
)

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
ONE = Hardware("one", tflops=100, memory=1000)


@pytest.fixture(scope="module")
def sizes() -> ModelSizes:
    return load_model_sizes("Qwen/Qwen2.5-1.5B", "nowhere", environ={"HF_HOME": "/nowhere"})


def params_of(**training: object):
    overrides = {"model": {"cache_dir": "nowhere", "engine": "transformers"}, "training": training}
    params = load_params("grpo_code_execution", profile="default", overrides=overrides, environ={})
    return resolve(params, recommend(replace(benchmark.V100, memory_gib=16.0), environ={}), environ={})


def test_the_tables_on_the_page_are_what_the_code_estimates():
    page = PAGE.read_text(encoding="utf-8")
    assert [row for row in benchmark.render_rows() if row not in page] == []
    for _, hardware in benchmark.MACHINES:
        figures = (
            f"{hardware.tflops:g}",
            f"{hardware.memory:g}",
            f"{hardware.link:g}",
            f"{hardware.network:g}",
        )
        assert f"| {hardware.name} | {' | '.join(figures)} |" in page


def test_a_step_takes_the_operations_and_bytes_that_the_page_says(sizes):
    params = params_of(per_device_train_batch_size=8, max_completion_length=101, gradient_checkpointing=False)
    step, parameters = estimate_step(params, sizes, ONE), sizes.num_parameters
    assert step.tokens == 8 * (512 + 101)
    flops = 100e12 * COMPUTE_SHARE
    assert step.update == pytest.approx(
        4 * parameters * step.tokens / flops
    )  # frozen weights: 2 forwards, 2 back
    # 28 layers x keys and values of 256 numbers of 2 bytes; weights of 2 bytes.
    bytes_of_a_token = 2 * parameters + 8 * (512 + 50.5) * 28 * 2 * 256 * 2
    decoded = bytes_of_a_token / (1000e9 * READ_SHARE) + 28 * LAUNCH_SECONDS
    assert step.generation == pytest.approx(2 * parameters * 8 * 512 / flops + 100 * decoded, rel=0.001)
    recomputed = estimate_step(params_of(gradient_checkpointing=True), sizes, ONE)
    kept = estimate_step(params_of(gradient_checkpointing=False), sizes, ONE)
    assert recomputed.update == pytest.approx(1.5 * kept.update)


def test_ranks_exchange_each_gradient_about_twice_over_the_slowest_link():
    node = Hardware("node", 100, 1000, gpus=8, link=400.0)
    assert exchange_seconds(400e9, ONE) == 0
    assert exchange_seconds(400e9, node) == pytest.approx(2 * 7 / 8)
    assert exchange_seconds(400e9, node._replace(nodes=2, network=40.0)) == pytest.approx(10 * 2 * 15 / 16)


def test_grpo_grows_with_the_ranks_and_self_play_shares_its_games(sizes):
    node = ONE._replace(gpus=8, link=400.0)
    grpo = params_of()
    assert estimate_step(grpo, sizes, node).tokens == 8 * estimate_step(grpo, sizes, ONE).tokens
    assert estimate_efficiency(grpo, sizes, node) == pytest.approx(1, abs=0.01)
    play = benchmark.load_profile("spiral_self_play", benchmark.H100)
    assert estimate_step(play, sizes, node).tokens == estimate_step(play, sizes, ONE).tokens
    assert estimate_efficiency(play, sizes, node) < 0.5


def test_two_workers_are_compared_with_one_in_turns():
    calls: list[str] = []

    def take(name: str, seconds: float) -> float:
        calls.append(name)
        return seconds

    ratio = benchmark.measure_ratio(lambda: take("one", 3.0), lambda: take("two", 2.0), rounds=3)
    assert (ratio, calls) == (1.5, ["one", "two"] * 3)
