"""The admin API, which only operators may use."""
