"""The command `headwater migrate check`."""
