"""Speed and acceptance, measured: what to run, how it is timed, what it must have read, and what is kept of it."""
