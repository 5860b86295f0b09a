"""The command line: parse, call `specdecode.core`, render."""
