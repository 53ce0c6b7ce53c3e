"""Follows one source: applies its stream to the store, takes up changes of its tables, runs bulk jobs beside it."""
