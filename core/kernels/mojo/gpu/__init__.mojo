"""The same kernels on an NVIDIA GPU of compute capability 9.0: what `execute` launches when its target is a GPU."""
