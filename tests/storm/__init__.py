"""A random workload against the whole service: `python -m tests.storm --minutes 60`."""
