"""A NumPy reference of DeepSeek-V4.1 and its DSpark drafter: slow, plain, and the yardstick of the kernels."""
