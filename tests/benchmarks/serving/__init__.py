"""Load on a running server: what clients do, and what has to hold."""
