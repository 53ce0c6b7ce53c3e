"""What operators see and do of the service at work: parked uploads, audits, buckets, and figures of the last day."""
