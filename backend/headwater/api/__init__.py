"""The endpoint that devices talk to, its probes and metrics."""
