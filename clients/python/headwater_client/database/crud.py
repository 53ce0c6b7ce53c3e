"""Local writes on their way to the server, as an app's connector gets them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headwater_client.storage.uploads import CrudEntry


@dataclass(frozen=True)
class CrudBatch:
    """Writes in the order in which they were made. `complete` takes them, and all before them, off the queue."""

    crud: Sequence[CrudEntry]
    _complete: Callable[[int, str | None], None] = field(repr=False)

    def complete(self, write_checkpoint: str | None = None) -> None:
        """They are uploaded. Where the app's backend numbers write checkpoints itself, with that number."""
        self._complete(self.crud[-1].op_id, write_checkpoint)


@dataclass(frozen=True)
class CrudTransaction(CrudBatch):
    """The writes of one local transaction."""

    @property
    def transaction_id(self) -> int | None:
        """Numbers the local transactions of a file."""
        return self.crud[0].transaction_id


def as_json(entry: CrudEntry) -> dict[str, object]:
    """An entry as the stock SDKs send it, and as Headwater's `POST /upload` takes it.

    JSON has no infinite numbers: they become null, as JavaScript writes them.
    """
    fields: dict[str, object] = {
        "op_id": entry.op_id, "op": entry.op, "type": entry.table, "id": entry.id, "tx_id": entry.transaction_id,
        "data": _finite(entry.data), "old": _finite(entry.previous), "metadata": entry.metadata,
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value is not None}


def _finite(values: Mapping[str, object] | None) -> dict[str, object] | None:
    if values is None:
        return None
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }
