"""Reads the text of a sync config: YAML and SQL with positions."""
