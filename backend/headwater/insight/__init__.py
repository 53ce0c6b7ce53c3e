"""Analyses of a source, its store and its rules. Only `forget` changes anything. Nothing here prints."""
