"""The commands `headwater rules …`, for work on sync configs."""
