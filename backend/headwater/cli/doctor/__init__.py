"""The command `headwater doctor`."""
