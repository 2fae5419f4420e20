"""What the pipelines hang on TRL's GRPOTrainer."""
