"""Writes of devices into the source: exactly once, as a role that row-level security binds."""
