"""Our own copy of rows and the history of buckets."""
