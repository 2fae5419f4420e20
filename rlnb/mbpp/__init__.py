"""The MBPP evaluation: `notebooks/mbpp_eval.ipynb`, and what every training calls."""
