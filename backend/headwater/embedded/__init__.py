"""Postgres, Java and Node: finds those of the machine, or those in Python packages, and runs them."""
