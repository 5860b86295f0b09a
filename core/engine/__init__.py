"""Requests in, tokens out: scheduling, the step loop, compiled graphs."""
