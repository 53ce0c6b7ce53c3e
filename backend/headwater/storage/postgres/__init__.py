"""The store in a Postgres database, version 14 or newer: several writers, one at a time per source, and any number of
readers, on any number of machines. Everything is in one schema."""
