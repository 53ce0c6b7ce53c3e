"""Access to a source, which is always Postgres: connections, slot, stream, catalog and single rows. Another kind of
source would be a package beside this one; `replication`, `pipeline` and `cli.databases` name this one directly."""
