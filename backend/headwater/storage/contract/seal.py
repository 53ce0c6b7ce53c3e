"""Sealing a store that another one has replaced: it can still be read, but no process writes to it any more.

The seal is in the store itself, so that it also binds processes that have the store open.
"""

from __future__ import annotations

from headwater.storage.contract.store import StoreError


class SealedStoreError(StoreError):
    """The store is sealed: it can be read, but no process can write to it."""

    code = "HW_4104"


def sealed_error(note: str, where: str) -> SealedStoreError:
    """The error of a write to a sealed store."""
    return SealedStoreError(
        f"the store is sealed: {note}",
        where,
        "use the store that replaced it; if there is none, `headwater store unseal` opens it again",
    )
