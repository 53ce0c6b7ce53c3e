"""The commands `headwater upload …`, for uploaded transactions that could not be applied."""
