"""Measuring policies: on held-out tasks before, during and after training, and against one another."""
