"""Bulk work beside the stream, done a bit at a time between its flushes."""
