"""The format of a store is the number of its last migration. Headwater upgrades stores of older formats when it opens
them, and refuses newer ones, which it might damage."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from headwater.storage.contract.store import StoreError

FORMAT_KEY = "store_format"
GIVEN_BY_KEY = "format_by"
"""The keys under which a store notes its format and the version of headwater that set it."""

_DEVELOPMENT_KEY = "format"
"""Where versions before 0.1.0 noted their formats, which were counted otherwise and can't be upgraded."""

NOTED = (FORMAT_KEY, GIVEN_BY_KEY, _DEVELOPMENT_KEY)


def own_version() -> str:
    """The running version of headwater."""
    return version("headwater")


def noted_format(noted: Mapping[str, str], known: int, where: str) -> int:
    """The format of a store that has these values under the keys NOTED. Raises StoreError when it is newer than the
    newest `known` one, or that of a development version."""
    if _DEVELOPMENT_KEY in noted:
        raise StoreError(
            "the store was written by a development version before 0.1.0",
            where,
            "start with an empty store: configure another place in storage, or remove this store",
        )
    found, given_by = int(noted.get(FORMAT_KEY, 0)), noted.get(GIVEN_BY_KEY, "")
    if found <= known:
        return found
    whose = f", set by headwater {given_by}" if given_by else ""
    remedy = f"use headwater {given_by} or newer" if given_by else "use the version of headwater that made it"
    raise StoreError(
        f"the store has format {found}{whose}; this is headwater {own_version()}, which knows formats up to {known}",
        where,
        f"{remedy}, or configure another place in storage to build a new one",
    )
