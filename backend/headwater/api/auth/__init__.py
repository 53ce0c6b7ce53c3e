"""Authenticates requests: tokens, and the keys that they are verified with."""
