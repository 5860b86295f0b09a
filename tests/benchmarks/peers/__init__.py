"""This project's step beside MAX's own speculative step for DeepSeek-V4, at the same small sizes."""
