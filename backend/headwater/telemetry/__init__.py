"""Structured fields of log lines, and traces."""
