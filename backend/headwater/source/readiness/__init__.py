"""Checks whether a source allows replication, and prepares it."""
