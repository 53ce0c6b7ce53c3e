"""The command `headwater init`."""
