"""Models, engine, text and checkpoints, without any command line or terminal code."""
