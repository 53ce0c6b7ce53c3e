"""Compaction: makes the histories of buckets short, in the background or on command."""
