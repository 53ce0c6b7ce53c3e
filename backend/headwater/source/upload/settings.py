"""What may be uploaded, as whom, and within which bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from headwater.source.connect import SourceSettings


class Operation(Enum):
    """What a device may do to rows of a table."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


class Conflict(Enum):
    """What happens to a write whose row was changed since the device saw it."""

    LAST_WRITE_WINS = "last_write_wins"
    REJECT_CHANGED = "reject_changed"
    FUNCTION = "function"


@dataclass(frozen=True, slots=True)
class TableRule:
    """One table of the allow list. `columns` None allows all; `key` None is the primary key. With several key columns
    the device's id is their values, joined by `separator`. `function` is schema and name, with Conflict.FUNCTION."""

    schema: str
    name: str
    columns: frozenset[str] | None = None
    operations: frozenset[Operation] = frozenset(Operation)
    conflict: Conflict = Conflict.LAST_WRITE_WINS
    function: tuple[str, str] | None = None
    key: tuple[str, ...] | None = None
    separator: str = "/"
    row_security: bool = True
    skip_gone: bool = False

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class UploadSettings:
    """`login` connects and keeps the records, `role` is what it becomes to write. `tables` maps the client's names of
    tables. Times are in seconds, all limits per process; `window` and `keep_days` say how much is remembered of a
    device's last ops."""

    login: SourceSettings
    role: str
    tables: Mapping[str, TableRule] = field(default_factory=dict)
    search_path: tuple[str, ...] = ("public",)
    statement_timeout: int = 15
    lock_timeout: int = 5
    max_connections: int = 8
    max_waiting: int = 100
    max_per_user: int = 4
    max_parked_per_user: int = 1000
    max_body_bytes: int = 8 << 20
    keep_days: int = 7
    window: int = 10_000
