"""Training loops, one a file, and what we hang on TRL's."""
