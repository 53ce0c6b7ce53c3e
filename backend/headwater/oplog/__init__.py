"""Changes, row ids and ops: what everything else speaks of. No I/O."""
