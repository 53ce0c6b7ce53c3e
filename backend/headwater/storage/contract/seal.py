"""Sealing a store: it can be read, but nobody writes to it any more, because another one has taken its place.

The seal is in the store itself, so that processes which have it open already are bound by it too.
"""

from __future__ import annotations

from headwater.storage.contract.store import StoreError


class SealedStoreError(StoreError):
    """The store is sealed."""

    code = "HW_4104"


def sealed(note: str, where: str) -> SealedStoreError:
    """Says where the store went."""
    return SealedStoreError(
        f"the store is sealed: {note}",
        where,
        "use the store that took its place; if there is none, `headwater store unseal` opens it again",
    )
