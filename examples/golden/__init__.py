"""Comparing the model with a golden folder: a checkpoint with the outputs of the reference implementation."""
