"""The sampling audit, which looks at everything once more, slowly and all the time."""
