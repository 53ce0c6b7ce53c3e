"""The state of a source's replication, and what endangers it."""
