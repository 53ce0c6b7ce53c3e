"""Streams over a websocket: the responding side of RSocket, as far as clients use it."""
