"""Clients that mean no good: what they say, how they say it to an endpoint, and what must not come of it."""
