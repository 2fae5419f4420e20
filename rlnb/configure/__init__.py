"""Writing a parameter file by answering questions: `rlnb configure` and `notebooks/configure.ipynb`."""
