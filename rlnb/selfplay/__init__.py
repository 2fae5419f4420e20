"""Playing games against each other and learning from them: shared by SPIRAL and PPO."""
