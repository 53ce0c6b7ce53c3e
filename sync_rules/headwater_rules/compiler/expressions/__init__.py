"""Scalar expressions of a rule, translated to SQLite."""
