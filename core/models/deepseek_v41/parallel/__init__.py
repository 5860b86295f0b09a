"""The model on several devices: which part of every weight each has, and the layers in lockstep."""
