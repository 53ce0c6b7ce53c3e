"""Metrics for Prometheus. They need no token, and name no host, no user and no row."""
