"""Describes plans in words and as client schemas."""
