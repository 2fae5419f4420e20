"""Rows of the optional engines, each in a process whose first import they are: unsloth and vLLM."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rlnb.selftest.rows import Outcome, Setting

if TYPE_CHECKING:
    from rlnb.code_execution.params import GrpoCodeExecutionParams
    from rlnb.policy import Policy

MAX_RATIO_GAP = 0.1  # of the mean ratio between the policy's and vLLM's probabilities from 1


def check_unsloth(setting: Setting) -> Outcome:
    """Read, train and resume by unsloth; see that generating leaves its gradient checkpointing on."""
    import unsloth  # noqa: F401  # patches transformers and trl, so it is imported before them

    from rlnb.policy import load_policy
    from rlnb.selftest.reading import compare_families
    from rlnb.selftest.training import check_grpo, find_step_faults, train_grpo

    families, grpo = (
        compare_families(setting, "unsloth", read_plainly(setting)),
        check_grpo(setting, "unsloth"),
    )
    params = unsloth_4bit_params(setting)
    policy = load_policy(params.model, gradient_checkpointing=True)
    rows = train_grpo(setting, policy, params, folder="4bit")
    faults = [families.fault, grpo.fault, *(f"4 bits: {fault}" for fault in find_step_faults(rows))]
    faults.append(find_checkpointing_fault(policy))
    compiled = Path(os.environ["UNSLOTH_COMPILE_LOCATION"])
    num_files = sum(path.is_file() for path in compiled.rglob("*"))
    measured = {
        "families": families.measured,
        "grpo": grpo.measured,
        "4bit": rows,
        "num_compiled_files": num_files,
    }
    return Outcome(
        f"{families.headline}; {grpo.headline}", "; ".join(fault for fault in faults if fault), measured
    )


def unsloth_4bit_params(setting: Setting) -> "GrpoCodeExecutionParams":
    """Return the parameters of one step by unsloth in 4 bits."""
    from rlnb.selftest.models import model_params
    from rlnb.selftest.training import grpo_params

    model = model_params(setting, engine="unsloth", load_in_4bit=True)
    return grpo_params(setting, model, max_steps=1, gradient_checkpointing=True)


def read_plainly(setting: Setting) -> dict[str, list[list[float]]]:
    """Return the references of the families, which a process without unsloth builds and reads."""
    result = setting.folder / "references.json"
    function = "rlnb.selftest.models:build_and_read"
    command = [sys.executable, "-m", "rlnb.selftest.child", function, setting.folder, setting.models, result]
    subprocess.run(list(map(str, command)), check=True)
    report = json.loads(result.read_text(encoding="utf-8"))
    if report["fault"]:
        raise RuntimeError(report["fault"])
    references: dict[str, list[list[float]]] = report["measured"]
    return references


def find_checkpointing_fault(policy: "Policy") -> str:
    """Return what generating changes in the gradient checkpointing of a model that trains."""
    from rlnb.policy import generate

    policy.model.for_training(use_gradient_checkpointing="unsloth")
    before = checkpointing_of(policy)
    generate(policy, ["2048 is"], max_new_tokens=4, temperature=1.0)
    after = checkpointing_of(policy)
    return "" if before == after else f"generating turns gradient checkpointing from {before} to {after}"


def checkpointing_of(policy: "Policy") -> list[str]:
    modules = policy.model.modules()
    return sorted({str(m.gradient_checkpointing) for m in modules if hasattr(m, "gradient_checkpointing")})


def check_vllm(setting: Setting) -> Outcome:
    """Make GRPO steps with completions by vLLM on the same GPU, of a model that soon ends its answers."""
    from rlnb.policy import load_policy
    from rlnb.selftest.training import train_grpo

    params = vllm_params(setting)
    policy = load_policy(params.model, gradient_checkpointing=bool(params.training.gradient_checkpointing))
    return judge_vllm(train_grpo(setting, policy, params, folder="vllm"))


def vllm_params(setting: Setting) -> "GrpoCodeExecutionParams":
    """Return the parameters of three steps with completions by vLLM."""
    from rlnb.selftest.models import model_params
    from rlnb.selftest.training import grpo_params

    vllm = {"enabled": True, "gpu_memory_utilization": 0.2, "sleep_mode": True, "max_model_len": 1024}
    return grpo_params(setting, model_params(setting, kind="ends"), vllm=vllm, max_completion_length=128)


def judge_vllm(rows: list[dict[str, float]]) -> Outcome:
    """Judge the steps by their gradients, by how completions ended, and by vLLM's probabilities."""
    from rlnb.selftest.training import find_step_faults

    last, faults = rows[-1], find_step_faults(rows)
    cut, ratio = last["completions/clipped_ratio"], last["sampling/importance_sampling_ratio/mean"]
    if cut == 1:
        faults.append("no completion ended at its end token: vLLM was not told of it")
    if not abs(ratio - 1) <= MAX_RATIO_GAP or not math.isfinite(ratio):
        faults.append(f"vLLM's probabilities are not the policy's: their mean ratio is {ratio:.3g}")
    return Outcome(f"{cut:.0%} of the completions cut, ratio {ratio:.3f}", "; ".join(faults), {"steps": rows})
