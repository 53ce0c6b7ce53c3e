"""Reading and rewriting the stored ops of buckets."""
