"""Applies the writes that devices upload to the source: exactly once, under row-level security."""
