"""The sync protocol: requests, sessions, lines, and which streams a change concerns. Pure: nothing here does I/O."""
