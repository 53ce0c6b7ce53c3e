"""Runs tasks on Spark: its session, its log, and the engine."""
