"""Spark itself: its session, tasks on it, and the engine made of both."""
