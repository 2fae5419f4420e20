"""Source code in completions: cutting it out and checking it without running it."""
