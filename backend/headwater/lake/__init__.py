"""The store as tables of Parquet files, for programs that are no devices."""
