"""Data only: YAML presets and the embedded demo checkpoint."""
