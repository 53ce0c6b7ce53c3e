"""Figures for Prometheus: they need no token, and name no host, no user and no row."""
