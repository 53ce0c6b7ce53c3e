"""Rows of a source that are asked for one by one."""
