"""Access to Postgres as a source: connections, slot, stream, catalog and single rows."""
