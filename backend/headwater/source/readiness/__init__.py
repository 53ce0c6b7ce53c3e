"""Whether a source allows what we need, and what makes it."""
