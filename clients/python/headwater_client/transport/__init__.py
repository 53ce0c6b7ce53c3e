"""How a device reaches a server: over HTTP, and for the sync stream also over a websocket."""
