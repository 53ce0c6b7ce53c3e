"""The op log as a data source of Spark."""
