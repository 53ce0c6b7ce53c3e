"""The command `headwater-client`."""
