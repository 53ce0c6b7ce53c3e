"""Reads single rows of a source."""
