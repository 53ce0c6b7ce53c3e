"""Evaluates a plan on the pinned SQLite: rows to bucket and lookup entries, requests to buckets."""
