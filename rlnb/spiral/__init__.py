"""SPIRAL: `notebooks/spiral_self_play.ipynb`."""
