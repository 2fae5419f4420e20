"""Runs: directories, headless execution, signals, checkpoints, health checks, metrics."""
