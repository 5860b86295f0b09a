"""DeepSeek-V4.1 (`deepseek_v41`) with its DSpark drafter."""
