"""The commands `headwater source …`, for work on sources."""
