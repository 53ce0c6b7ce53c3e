"""What a process tells of itself: fields of log lines, and traces."""
