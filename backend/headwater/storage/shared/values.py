"""Values of a result row whose types drivers do not tell."""

from __future__ import annotations


def whole(value: object) -> int:
    """A whole number. Raises ValueError where none stands, which a store that is not damaged does not have."""
    return value if isinstance(value, int) else int(str(value))
