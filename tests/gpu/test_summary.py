"""What `make test-gpu` prints at its end."""

import subprocess
import sys
from pathlib import Path


def test_the_figures_of_the_tests_that_were_chosen_are_printed_and_those_of_no_other():
    command = ["-m", "pytest", "-p", "no:cacheprovider", "tests/gpu/test_arithmetic.py", "-k"]
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, *command, "exact and float32"], cwd=root, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = ended.stdout.partition("figures")[2]
    assert "exact_but_for_rounding[float32]: " in figures and "float16" not in figures
