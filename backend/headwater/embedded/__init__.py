"""Servers and runtimes that we bring along where the machine has none: Postgres, Java, Node."""
