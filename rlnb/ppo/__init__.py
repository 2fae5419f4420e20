"""PPO on OpenSpiel: `notebooks/ppo_openspiel.ipynb` and `notebooks/arena_eval.ipynb`."""
