"""The commands `headwater store …`."""
