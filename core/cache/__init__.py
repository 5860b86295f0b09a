"""Cache pages: who owns which."""
