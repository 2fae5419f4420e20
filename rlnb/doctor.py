"""`rlnb doctor`: what this machine has, and what to do about what is missing. Imports no torch."""

import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import rlnb
from rlnb.errors import RlnbError
from rlnb.machine import Machine, Recommendation, installed_version, probe, recommend

ROOT = Path(rlnb.__file__).parents[1]
STACK = ("torch", "transformers", "trl", "peft", "datasets", "open-spiel")


class Finding(NamedTuple):
    """One line of the table. remedy: "" if nothing is missing. fatal: without it nothing works."""

    topic: str
    state: str
    remedy: str = ""
    fatal: bool = False


def report(
    machine: Machine, *, root: Path = ROOT, environ: Mapping[str, str] | None = None, prefix: str = sys.prefix
) -> list[Finding]:
    """Return what this machine has, most important first. Uses no network."""
    environ = os.environ if environ is None else environ
    choices = recommend(machine, environ=environ)
    return [
        Finding("Python", f"{platform.python_version()}, {platform.machine()}, in {sys.prefix}"),
        _package_set(root, prefix),
        _stack(),
        _gpu(machine, prefix),
        *find_compiler(machine),
        _engine(machine, choices),
        _sandbox(),
        Finding("environment", machine.environment),
        _hub(machine, choices),
        *_keys(root, environ),
        *(Finding("machine", "a warning", warning) for warning in choices.warnings),
    ]


def main() -> int:
    """Print the table; return 1 if nothing can work, else 0."""
    findings = report(probe())
    print(render(findings))
    return int(any(finding.fatal for finding in findings))


def render(findings: Sequence[Finding]) -> str:
    """Return a line for each finding, then a remedy for each shortfall."""
    margin = max(len(finding.topic) for finding in findings) + 3
    lines, remedies = [], []
    for topic, state, remedy, fatal in findings:
        mark = "x" if fatal else "!" if remedy else " "
        lines.append(f"{mark} {topic:{margin}}{state}")
        remedies += [f"{mark} {topic}: {remedy}"] if remedy else []
    return "\n".join([*lines, "", *(["What to do:", *remedies] if remedies else ["Nothing is missing."])])


def _stack() -> Finding:
    versions = {name: installed_version(name) for name in STACK}
    missing = [name for name, version in versions.items() if version is None]
    state = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    remedy = f"{' and '.join(missing)} not installed: run ./setup.sh" if missing else ""
    return Finding("training stack", state, remedy, fatal=bool(missing))


def _package_set(root: Path, prefix: str) -> Finding:
    name = _installed_set(prefix)
    if not name:
        return Finding("package set", "not known", "this Python was not set up to the end: run ./setup.sh")
    from packaging.requirements import Requirement  # missing from a bare Python

    text = (root / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    lines = [line.partition("#")[0] for line in text.splitlines()]
    pins = [
        pin for pin in map(Requirement, filter(str.strip, lines)) if not pin.marker or pin.marker.evaluate()
    ]
    present = {pin.name: installed_version(pin.name) for pin in pins}
    moved = [
        f"{pin.name} {present[pin.name] or 'missing'}, pinned {pin.specifier}"
        for pin in pins
        if not pin.specifier.contains(present[pin.name] or "0", prereleases=True)
    ]
    state = f"{name}: {len(pins) - len(moved)} of {len(pins)} packages as pinned"
    return Finding("package set", state, f"{'; '.join(moved[:3])}: run ./setup.sh" if moved else "")


def _installed_set(prefix: str) -> str:
    marker = Path(prefix) / "rlnb-set"  # written by setup.sh as its last step
    return marker.read_text(encoding="utf-8").strip() if marker.is_file() else ""


def _gpu(machine: Machine, prefix: str) -> Finding:
    name, memory = _installed_set(prefix), f"{machine.memory_gib:.0f} GiB"
    if not machine.capability:
        too_old = f"{machine.accelerator}, older than Volta" if machine.accelerator else "none"
        state = f"{too_old}; {machine.cpu_count} cores, {memory} of memory"
        remedy = f"set {name} needs a GPU and none that it knows is visible (normal on a login node)"
        return Finding("GPU", state, "" if name in ("", "cpu") else remedy)
    state = f"{machine.accelerator}, capability {'{}.{}'.format(*machine.capability)}, {memory}"
    serving = ("volta",) if machine.name == "v100" else ("cuda", "unsloth", "vllm")
    is_served = name in ("", *serving)
    remedy = "" if is_served else f"the packages of set {name} do not serve it: ./setup.sh {serving[0]}"
    return Finding("GPU", state, remedy)


def find_compiler(machine: Machine) -> list[Finding]:
    """Return whether Triton, which compiles at the first GRPO step on every GPU that computes, has its needs.

    A compiler: CC, or gcc or clang on the PATH.
    """
    if not machine.capability:
        return []
    missing = [] if os.environ.get("CC") or any(map(shutil.which, ("gcc", "clang"))) else ["a C compiler"]
    missing += [] if Path(sysconfig.get_path("include"), "Python.h").is_file() else ["Python.h"]
    remedy = f"Triton needs {' and '.join(missing)}: apt install gcc python3-dev" if missing else ""
    return [Finding("compiler", f"Triton {installed_version('triton') or 'missing'}", remedy)]


def _engine(machine: Machine, choices: Recommendation) -> Finding:
    vllm, bitsandbytes = installed_version("vllm"), installed_version("bitsandbytes")
    state = f"{choices.engine}, {choices.dtype}, profile {choices.profile}"
    if not machine.capability:
        return Finding("engine", state)
    state += f", vLLM {vllm or 'not installed'}, bitsandbytes {bitsandbytes or 'missing'}"
    state += ", 4 bits" if choices.load_in_4bit else ""
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
    """Return whether there are keys, in the environment, in .env or in a login's file; never the keys."""
    # Imported here: --help needs neither pydantic nor YAML.
    from rlnb.params import load_dotenv
    from rlnb.params.resolving import has_wandb_key

    environ = dict(environ)
    load_dotenv(root, environ=environ, project=root)
    home = environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    token = environ.get("HF_TOKEN") or Path(environ.get("HF_TOKEN_PATH") or Path(home, "token")).is_file()
    no_key, no_token = "runs write metrics.jsonl and TensorBoard", "gated models and uploads need HF_TOKEN"
    return [
        Finding("W&B key", "there" if has_wandb_key(environ) else f"none: {no_key}"),
        Finding("hub token", "there" if token else f"none: {no_token}"),
    ]
