"""The process of one row: python -m rlnb.selftest.child MODULE:FUNCTION FOLDER MODELS RESULT."""

import faulthandler
import importlib
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from rlnb.machine import apply_environment, probe, recommend
from rlnb.selftest.rows import Outcome, Setting


def main(arguments: Sequence[str]) -> None:
    """Call the function and write its outcome; whatever it raises is the fault of the row."""
    faulthandler.enable()
    name, folder, models, result = arguments
    machine = probe(ask_hub=False)
    choices = recommend(machine)
    apply_environment(choices)  # before torch is imported
    module, _, function = name.partition(":")
    try:
        check = getattr(importlib.import_module(module), function)
        outcome = check(Setting(Path(folder), Path(models), machine, choices))
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines()
        outcome = Outcome("", fault=f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": "))
    report = {
        "headline": outcome.headline,
        "fault": outcome.fault,
        "measured": outcome.measured,
        "peak_memory_gib": round(peak_memory_gib(), 3),
    }
    unfinished = Path(f"{result}.part")
    # JSON has neither NaN nor infinity.
    text = json.dumps(json.loads(json.dumps(report), parse_constant=str))
    unfinished.write_text(text, encoding="utf-8")
    unfinished.rename(result)


def peak_memory_gib() -> float:
    """Return the most memory that this process had: the GPU's by torch, or resident where there is none."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return float(torch.cuda.max_memory_reserved() / 2**30)
    # Not getrusage: its maximum begins with the memory of the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**20  # of KiB


if __name__ == "__main__":
    main(sys.argv[1:])
