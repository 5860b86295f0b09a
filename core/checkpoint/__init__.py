"""Checkpoints on disk: safetensors shards, number formats, the tensors a configuration asks for."""
