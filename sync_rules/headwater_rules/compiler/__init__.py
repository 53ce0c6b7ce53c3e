"""Compiles the text of a sync config to its plan, or to all its errors."""
