"""Changes, row ids and ops: the data types that all other packages share. No I/O."""
