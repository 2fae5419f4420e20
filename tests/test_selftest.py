"""The self-test: rows that raise, hang or die fail alone; broken models are seen; a whole run passes."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from transformers import AutoTokenizer

from rlnb import cli
from rlnb.machine import Machine, probe, recommend
from rlnb.params import check_machine
from rlnb.policy import load_policy
from rlnb.policy.generation import generate_ids
from rlnb.selftest.arithmetic import judge_kernel, judge_products, measure_products, serves
from rlnb.selftest.engines import judge_vllm, unsloth_4bit_params, vllm_params
from rlnb.selftest.models import TEXTS, build_and_read, model_params
from rlnb.selftest.reading import (
    check_export,
    find_export_faults,
    find_noise_faults,
    find_reading_faults,
    measure_gaps,
    measure_noise,
    sample_batch,
)
from rlnb.selftest.rows import ROWS, Row, Setting
from rlnb.selftest.runner import describe_end, run_all
from rlnb.selftest.training import NUM_STEPS, judge_games, judge_grpo

ROOT = Path(__file__).parents[1]
CPU = Machine("cpu", "", None, 16.0, 2, "workstation", "unasked")
V100 = Machine("v100", "Tesla V100", (7, 0), 32.0, 8, "workstation", "unasked")
ROWS_THAT_BREAK = """
import os, signal, subprocess, sys, time
from rlnb.selftest.rows import Outcome

def works(setting): return Outcome("7 apples", measured={"apples": 7})
def judges(setting): return Outcome("7 apples", "there should be 8", {"apples": 7, "pears": float("nan")})
def raises(setting): raise ValueError("no such thing\\nand a second line")
def leaves(setting): sys.exit(3)
def dies(setting): os.kill(os.getpid(), signal.SIGKILL)
def crashes(setting): os.abort()
def hangs(setting):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (setting.models / "pid").write_text(str(child.pid))
    time.sleep(600)
def reads(setting):
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    return Outcome(str(psutil_status(int((setting.models / "pid").read_text()))))
def psutil_status(pid):
    import psutil
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
"""


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def rows_that_break(tmp_path, monkeypatch) -> list[Row]:
    (tmp_path / "broken_rows.py").write_text(ROWS_THAT_BREAK)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    names = ("works", "raises", "leaves", "dies", "crashes", "hangs", "reads", "judges")
    limits = {"hangs": 6.0}
    return [Row(name, f"broken_rows:{name}", "", (), limits.get(name, 60.0)) for name in names]


def test_rows_that_raise_die_or_hang_fail_alone_and_their_children_end_with_them(rows_that_break, capsys):
    skipped = Row("unsloth", "broken_rows:works", "", ("gpu", "unsloth"))
    assert run_all([*rows_that_break, skipped], CPU, as_json=True) == 1
    *_, summary, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)
    assert report == json.loads(Path("selftest.json").read_text())
    rows = {row["row"]: row for row in report["rows"]}
    assert {name: (row["state"], row["fault"]) for name, row in rows.items()} == {
        "works": ("ok", ""),
        "raises": ("FAILED", "ValueError: no such thing"),
        "leaves": ("FAILED", "ended with exit code 3 and no result"),
        "dies": ("FAILED", "killed by SIGKILL, most often because the memory is used up"),
        "crashes": ("FAILED", "killed by SIGABRT"),
        "hangs": ("FAILED", "did not end within 6 s"),
        "reads": ("ok", ""),
        "judges": ("FAILED", "there should be 8"),
        "unsloth": ("skipped", "needs a CUDA GPU"),
    }
    assert rows["works"]["measured"] == {"apples": 7}
    assert rows["judges"]["measured"] == {"apples": 7, "pears": "NaN"}
    assert rows["reads"]["headline"] == "False"  # the child of the row that hung
    assert "ValueError: no such thing" in rows["raises"]["output"]
    assert "Fatal Python error: Aborted" in rows["crashes"]["output"]
    assert 0 < rows["works"]["peak_memory_gib"] < 1 and rows["dies"]["peak_memory_gib"] is None
    assert summary.startswith("9 rows in ") and "6 failed (docs/troubleshooting.md#the-self-test)" in summary


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_self_test_ends_its_row_and_says_what_it_found(rows_that_break, tmp_path, sent):
    rows = [row for row in rows_that_break if row.name in ("works", "hangs")]
    source = f"""
import sys
from rlnb.machine import Machine
from rlnb.selftest.rows import Row
from rlnb.selftest.runner import run_all
sys.exit(run_all({[replace(row, limit_seconds=60.0) for row in rows]!r}, {CPU!r}))
"""
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", source], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 50
        while not (started := list(tmp_path.glob("rlnb-selftest-*/models/pid"))):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        while not (pid := started[0].read_text()):
            time.sleep(0.05)
        process.send_signal(sent)
        said, errors = process.communicate(timeout=50)
    assert process.returncode == 85 and "Traceback" not in errors
    summary = said.splitlines()[-1]
    assert summary.startswith("1 rows in ") and f"stopped by {sent.name} before hangs" in summary
    assert json.loads(Path("selftest.json").read_text())["rows"][0]["row"] == "works"
    assert list(tmp_path.glob("rlnb-selftest-*")) == []
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE


def test_a_row_is_a_line_with_its_state_seconds_memory_number_and_fault(rows_that_break, capsys):
    works, *_, judges = rows_that_break
    assert run_all([works], CPU) == 0
    assert run_all([works, judges], CPU) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    ok, failed = (next(line for line in reversed(lines) if line[0] == name) for name in ("works", "judges"))
    assert ok[1] == "ok" and failed[1] == "FAILED"
    assert all(0 < float(seconds) < 60 for seconds in (ok[2], failed[2])) and 0 < float(ok[3]) < 1
    assert " ".join(ok[4:]) == "7 apples" and " ".join(failed[4:]) == "7 apples; there should be 8"


def test_the_report_names_versions_and_machine_and_neither_user_nor_host(rows_that_break):
    run_all(rows_that_break[:1], V100)
    report = json.loads(Path("selftest.json").read_text())
    assert report["machine"]["accelerator"] == "Tesla V100"
    assert report["versions"]["torch"] and "vllm" in report["versions"]
    assert set(report) == {"rlnb", "python", "system", "machine", "versions", "seconds", "rows"}
    assert os.uname().nodename not in json.dumps(report)


def test_what_a_row_needs_is_said_where_it_is_missing():
    reasons = {row.name: row.missing(CPU) for row in ROWS}
    assert {name for name, reason in reasons.items() if reason == "needs a CUDA GPU"} == {
        "triton", "unsloth", "vllm",
    }  # fmt: skip
    assert len(ROWS) == len(reasons) == 11
    missing = Row("vllm", "", "", ("gpu", "vllm")).missing
    assert missing(V100) in ("", "needs vllm")
    assert missing(replace(V100, name="older")) == "needs a CUDA GPU"
    assert describe_end(-11) == "killed by SIGSEGV"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--selftest", "noize"],
            "--selftest: has no row 'noize'; its rows are torch, triton, families, noise",
        ),
        (["--json"], "--json: belongs to --selftest; give both"),
    ],
)
def test_wrong_options_are_refused(arguments, message, capsys):
    assert cli.main(["doctor", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_directory_that_cannot_be_written_is_refused_before_anything_runs(capsys):
    Path("selftest.json").mkdir()
    assert cli.main(["doctor", "--selftest", "torch"]) == 2
    said = capsys.readouterr()
    assert "selftest.json: cannot be written" in said.err and "torch" not in said.out


def test_one_row_by_the_command_writes_its_numbers(capsys):
    started = time.monotonic()
    assert cli.main(["doctor", "--selftest", "torch", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    (row,) = report["rows"]
    assert (row["row"], row["state"]) == ("torch", "ok")
    assert 0 < row["measured"]["product_error"]["float32"] < 1e-5
    assert 0 < report["seconds"] <= time.monotonic() - started + 0.1


# What the rows judge, on numbers that fit in the head.


def test_products_and_kernels_that_are_wrong_are_named():
    errors = measure_products("cpu", ["float32", "bfloat16"])
    assert judge_products(errors).fault == ""
    assert judge_products({**errors, "bfloat16": 0.5}).fault == (
        "products in bfloat16 are wrong by more than 0.02 of their largest entry"
    )
    assert "float32" in judge_products({"float32": math.nan}).fault
    assert judge_kernel({"float32": 1e-6}).fault == ""
    assert judge_kernel({"float32": 0.1}).fault == "TRL's kernel is wrong in float32"


@pytest.mark.parametrize(
    ("kernels", "capability", "is_served"),
    [
        (["sm_75", "sm_80", "sm_90"], (8, 6), True),
        (["sm_75", "sm_80", "sm_90"], (7, 0), False),
        (["sm_80", "sm_90", "sm_100", "sm_120"], (12, 1), True),
        (["sm_90", "sm_120a"], (12, 1), False),
        (["sm_90", "compute_90"], (12, 1), True),
        (["sm_90a"], (9, 0), True),
        (["sm_86"], (8, 0), False),
        ([], (9, 0), False),
    ],
)
def test_a_torch_without_kernels_for_the_gpu_is_seen(kernels, capability, is_served):
    assert serves(kernels, capability) == is_served


def step(**changes: float) -> dict[str, float]:
    return {"loss": 0.0, "grad_norm": 2.0, "reward": 0.5, **changes}


def test_a_gradient_of_zero_and_another_step_after_a_resume_are_faults():
    whole = [step() for _ in range(NUM_STEPS)]
    assert judge_grpo(whole, [step(grad_norm=2.01)]).fault == ""
    assert judge_grpo(whole, [step(grad_norm=2.2)]).fault == (
        "step 3 from a checkpoint has another gradient or reward (9.1%)"
    )
    assert judge_grpo(whole, whole).fault != ""  # it went on from the start
    masked = judge_grpo([*whole[:2], step(grad_norm=0.0)], [step(grad_norm=0.0)]).fault
    assert masked.startswith("step 3: the gradient is 0 though rewards differ")
    assert judge_grpo([*whole[:2], step(loss=math.nan)], [step()]).fault.startswith("step 3: loss nan")


def test_an_update_that_moves_nothing_is_a_fault():
    update = {"loss": 0.1, "grad_norm": 1.0, "update/first_ratio_deviation": 0.01}
    assert judge_games({"ppo": update}, {"ppo": 0.1}).fault == ""
    assert judge_games({"ppo": update}, {"ppo": 0.0}).fault == "ppo: the adapters did not move"
    nan = judge_games({"ppo": {**update, "grad_norm": math.nan}}, {"ppo": 0.1}).fault
    assert nan == "ppo: loss 0.1, grad_norm nan"


def test_vllm_that_never_ends_or_has_other_weights_is_seen():
    good = step() | {"completions/clipped_ratio": 0.25, "sampling/importance_sampling_ratio/mean": 1.01}
    assert judge_vllm([good]).fault == ""
    endless = judge_vllm([good | {"completions/clipped_ratio": 1.0}])
    assert endless.fault == "no completion ended at its end token: vLLM was not told of it"
    other = judge_vllm([good | {"sampling/importance_sampling_ratio/mean": 0.4}]).fault
    assert other == "vLLM's probabilities are not the policy's: their mean ratio is 0.4"


@pytest.mark.parametrize("parameters", [vllm_params, unsloth_4bit_params])
def test_the_rows_for_gpus_ask_for_parameters_that_are_accepted_there(setting, parameters, monkeypatch):
    for module in ("rlnb.params.sections", "rlnb.params.training", "rlnb.params.resolving"):
        monkeypatch.setattr(f"{module}.installed_version", lambda package: "1.0")
    h100 = Machine("h100", "NVIDIA H100", (9, 0), 79.6, 16, "workstation", "unasked")
    params = parameters(replace(setting, machine=h100))
    check_machine(params, h100)
    assert params.vllm.enabled == (parameters is vllm_params)


def test_only_the_policy_knows_where_the_chats_of_the_vllm_row_end(setting):
    """Its files name another end, as those of Qwen's base models do, and vLLM reads nothing else."""
    params = model_params(setting, kind="ends")
    policy = load_policy(params)
    chat_end = policy.tokenizer.convert_tokens_to_ids("<|im_end|>")
    named = [
        json.loads(path.read_text()).get("eos_token_id") for path in Path(params.id).glob("*config.json")
    ]
    assert chat_end not in named and chat_end in policy.model.generation_config.eos_token_id
    assert AutoTokenizer.from_pretrained(params.id).eos_token_id != chat_end
    ids = generate_ids(policy, ["2048 is"] * 4, max_new_tokens=128, temperature=1.0, row_seeds=range(4))
    assert {completion[-1] for completion in ids} == {chat_end}


# Broken models.


@pytest.fixture(scope="module")
def setting(tmp_path_factory) -> Setting:
    folder = tmp_path_factory.mktemp("selftest")
    machine = probe(ask_hub=False)
    (folder / "row").mkdir()
    return Setting(folder / "row", folder, machine, replace(recommend(machine), dtype="float32"))


def test_a_model_that_reads_other_log_probabilities_or_ends_too_soon_is_seen(setting):
    reference = build_and_read(setting).measured
    assert reference.keys() == {"qwen2", "qwen3", "gpt_oss"}
    policy = load_policy(model_params(setting))
    gaps = measure_gaps(policy, reference["qwen2"])
    assert len(gaps) == sum(len(continuation) for _, continuation in TEXTS) and gaps.max() < 1e-4
    assert find_reading_faults(policy, gaps) == []
    wrong = find_reading_faults(policy, measure_gaps(policy, reference["qwen3"]))
    assert len(wrong) == 1 and "nats from the CPU's in the mean, more than 0.001" in wrong[0]
    soon = load_policy(model_params(setting, kind="ends"))
    assert find_reading_faults(soon, gaps)[0].endswith("tokens where 8 were asked")


def test_a_model_whose_numbers_depend_on_the_batch_is_seen(setting):
    policy = load_policy(model_params(setting))
    batch = sample_batch(policy)
    noise = measure_noise(policy, batch)
    assert find_noise_faults(noise, policy.dtype) == []
    assert noise["32 rows"]["num_tokens"] == 2016 and noise["8 rows with gradients"]["mean"] < 1e-5
    layer = policy.model.get_base_model().model.layers[0].mlp
    layer.register_forward_hook(lambda _, __, output: output * (1 + 0.3 * len(output)))
    faults = find_noise_faults(measure_noise(policy, batch), policy.dtype)
    assert [fault.split(":")[0] for fault in faults] == ["8 rows", "32 rows", "8 rows with gradients"]
    assert all("would stop at their first update" in fault for fault in faults)


def test_an_export_without_its_adapters_is_seen():
    assert find_export_faults(0.02, 1.5) == []
    assert find_export_faults(1.5, 1.5) == ["logits are 1.5 away, where the adapters change them by 1.5"]
    assert find_export_faults(math.nan, 1.5) != []


@pytest.mark.slow
def test_exports_come_back_in_all_forms(setting):
    outcome = check_export(setting)
    assert outcome.fault == "" and len(outcome.measured) == 4
    assert all(part["effect_of_adapters"] > 0.5 for part in outcome.measured.values())


@pytest.mark.slow
def test_the_whole_self_test_passes_on_this_machine(capsys):
    assert cli.main(["doctor", "--selftest", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    states = {row["row"]: row["state"] for row in report["rows"]}
    assert list(states) == [row.name for row in ROWS]
    for name in ("torch", "families", "noise", "grpo", "games", "export", "speed"):
        assert states[name] == "ok"
    assert psutil.Process().children() == []
