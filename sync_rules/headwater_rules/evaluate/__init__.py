"""Running a plan: rows to bucket and lookup entries, requests to buckets, on the pinned SQLite."""
