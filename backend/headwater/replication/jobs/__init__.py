"""Bulk jobs beside the stream, which run in small steps between its flushes."""
