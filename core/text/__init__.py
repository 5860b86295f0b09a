"""Prompts in, tokens, text out."""
