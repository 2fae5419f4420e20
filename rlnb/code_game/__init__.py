"""The code game: `notebooks/grpo_code_game.ipynb`."""
