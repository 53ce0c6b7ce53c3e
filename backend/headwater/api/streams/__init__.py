"""Open streams: from a request to lines, and to whom they concern."""
