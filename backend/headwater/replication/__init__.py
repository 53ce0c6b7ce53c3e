"""Following one source: its stream into the store, its tables as they change, and bulk work beside it."""
