"""What only operators may ask."""
