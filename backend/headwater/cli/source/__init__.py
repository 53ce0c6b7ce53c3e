"""The commands `headwater source …`."""
