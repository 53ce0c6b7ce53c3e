"""Bulk jobs: divides them into tasks, and runs these on Spark."""
