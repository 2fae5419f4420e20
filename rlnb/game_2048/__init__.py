"""Strategies for 2048: `notebooks/gpt_oss_2048.ipynb`."""
