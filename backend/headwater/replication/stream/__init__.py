"""From batches of messages to flushes of the store."""
