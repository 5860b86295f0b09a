"""Layers of the released sizes, with random weights: how long a step takes, and what it has to move."""
