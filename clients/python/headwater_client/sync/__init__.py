"""Keeps a device in sync: one thread that downloads, uploads, and tries again."""
