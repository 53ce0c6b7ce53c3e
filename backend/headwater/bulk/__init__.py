"""The interface between replication, which needs bulk work, and the pipeline, which does it."""
