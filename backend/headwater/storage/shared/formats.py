"""The format of a store is a number that grows with each change of its tables. A version of headwater brings older
stores up to its own, and leaves newer ones alone: it would not know what it breaks.
"""

from __future__ import annotations

from importlib.metadata import version

from headwater.storage.contract.store import StoreError

FORMAT_KEY = "format"
GIVEN_BY_KEY = "format_by"
"""Where a store keeps, among its notes, its format and the version of headwater that gave it that."""


def own_version() -> str:
    """The version of headwater that runs."""
    return version("headwater")


def refuse_newer(found: int, known: int, given_by: str, where: str) -> None:
    """Raises StoreError when the format `found` in a store is beyond the newest one that this version knows."""
    if found <= known:
        return
    whose = f", which headwater {given_by} gave it" if given_by else ""
    remedy = f"use headwater {given_by} or newer" if given_by else "use the version of headwater that made it"
    raise StoreError(
        f"the store has format {found}{whose}; this is headwater {own_version()}, which knows formats up to {known}",
        where,
        f"{remedy}, or name another place in storage to build a new one",
    )
