"""Stores as earlier versions left them, made by `keep` and brought back by `kept`."""
