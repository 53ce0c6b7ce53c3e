"""The service config: read once, typed, with all errors reported at once. No layer below reads the environment."""
