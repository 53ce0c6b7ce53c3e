"""Access to a source: connections, slot, stream, catalog and single rows."""
