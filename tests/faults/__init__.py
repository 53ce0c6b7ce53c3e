"""Faults of everything around a service, injected one at a time: each has to be named, with what to do about it."""
