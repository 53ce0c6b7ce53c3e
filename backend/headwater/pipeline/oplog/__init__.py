"""The op log as a data source for Spark."""
