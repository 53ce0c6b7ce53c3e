"""Builds finished ops from the bodies without ids that runs hold."""

from __future__ import annotations


def numbered(bodies: bytes, first: int) -> bytes:
    """Finished ops with ids counting up from `first`, from their bodies; both joined by newlines."""
    # Formatting the whole text at once costs half of what it costs op by op
    pattern = bodies.replace(b"%", b"%%").replace(b"\n", b'\n{"op_id":"%d",')
    return (b'{"op_id":"%d",' + pattern) % tuple(range(first, first + bodies.count(b"\n") + 1))
