"""Postgres as it is followed: connections, slot, stream and catalog."""
