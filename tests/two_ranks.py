"""Scripts on two ranks of a CPU, as torchrun starts them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_on_two_ranks(script: Path, *arguments: Path) -> None:
    """Run a script to its end; it imports from this checkout, wherever another is installed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    path = os.pathsep.join(map(str, (ROOT, *sys.path)))
    environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, script, *arguments], env=environ, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
