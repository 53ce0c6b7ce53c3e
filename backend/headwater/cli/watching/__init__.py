"""Sets up the log, the metrics and the traces of a process."""
