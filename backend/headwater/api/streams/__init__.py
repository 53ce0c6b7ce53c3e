"""Streams: admits them, reads and encodes their lines, and wakes those that a change concerns."""
