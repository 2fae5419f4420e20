"""GRPO on executed code: `notebooks/grpo_code_execution.ipynb`."""
