"""The format of a store is the number of its last migration. Headwater upgrades stores of older formats when it opens
them, and refuses newer ones, which it might damage."""

from __future__ import annotations

from importlib.metadata import version

from headwater.storage.contract.store import StoreError

FORMAT_KEY = "format"
GIVEN_BY_KEY = "format_by"
"""The keys under which a store notes its format and the version of headwater that set it."""


def own_version() -> str:
    """The running version of headwater."""
    return version("headwater")


def refuse_unknown(found: int, known: int, given_by: str, where: str) -> None:
    """Raises StoreError when the format `found` in a store is newer than the newest `known` one."""
    if found <= known:
        return
    whose = f", set by headwater {given_by}" if given_by else ""
    remedy = f"use headwater {given_by} or newer" if given_by else "use the version of headwater that made it"
    raise StoreError(
        f"the store has format {found}{whose}; this is headwater {own_version()}, which knows formats up to {known}",
        where,
        f"{remedy}, or configure another place in storage to build a new one",
    )
