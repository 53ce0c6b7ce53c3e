"""The commands `headwater store …`, for work on stores."""
