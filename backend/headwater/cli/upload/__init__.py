"""The commands `headwater upload …`, for writes of devices that could not be applied."""
