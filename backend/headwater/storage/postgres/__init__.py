"""The store in a Postgres database, 14 or newer: several writers, one at a time for each source, and any number of
readers, on any number of machines. All of it is in one schema."""

from headwater.storage.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
