"""What every store does in the same way, written once over a `Cursor` and a `Dialect`."""
