"""The tables that are followed: what the store has of each, and how it keeps up with what they become."""
