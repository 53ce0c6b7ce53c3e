"""The commands `headwater rules …`."""
