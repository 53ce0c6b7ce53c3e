"""Bulk jobs cut into tasks, and Spark, which runs them."""
