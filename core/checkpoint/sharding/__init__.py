"""Cut a checkpoint for several devices: plan, write, verify, merge back."""
