"""The ops of buckets once they are written."""
