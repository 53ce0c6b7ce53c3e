"""Compaction: makes the histories of buckets short, in the background or on command. What of a history may go is said
by `storage.shared.compaction`."""
