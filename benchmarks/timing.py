"""Side-by-side timing: contestants take turns, so that whatever else the machine does hits all alike."""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Contestant = Callable[[], list[float]]  # runs a batch and returns the seconds of each item


def interleave(contestants: Mapping[str, Contestant], *, rounds: int) -> dict[str, dict[str, float]]:
    """{name: rate (items/s, the median round's), p50_ms and p99_ms of one item}, in rounds A B C, A B C."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    latencies: dict[str, list[float]] = {name: [] for name in contestants}
    for contestant in contestants.values():
        contestant()  # warm
    for _ in range(rounds):
        for name, contestant in contestants.items():
            started = time.perf_counter()
            seconds = contestant()
            rates[name].append(len(seconds) / (time.perf_counter() - started))
            latencies[name] += seconds
    return {
        name: {
            "rate": statistics.median(rates[name]),
            "p50_ms": 1000 * statistics.median(latencies[name]),
            "p99_ms": 1000 * sorted(latencies[name])[int(0.99 * (len(latencies[name]) - 1))],
        }
        for name in contestants
    }


def report(figures: Mapping[str, Any], *, description: str) -> None:
    """Print the figures: lines for people, or with --json one JSON object."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    if parser.parse_args().json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}")
