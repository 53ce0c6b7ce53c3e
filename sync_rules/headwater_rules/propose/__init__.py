"""Proposes a sync config for a database, from what its tables, columns and foreign keys are called."""
