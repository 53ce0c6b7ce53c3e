"""The store: current rows and the history of buckets."""
