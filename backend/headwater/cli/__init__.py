"""The command `headwater`: one module per command, one folder per group."""
