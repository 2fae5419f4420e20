"""PPO on OpenSpiel: `notebooks/ppo_openspiel.ipynb` and `rlnb eval --checkpoint`."""
