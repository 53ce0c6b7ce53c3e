"""Settings of uploads: the tables that devices may write to, the role to write as, and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from headwater.source.connect import SourceSettings

WAIT_SECONDS = 30
"""When a device is told to come again that waits until somebody mends something."""


class Operation(Enum):
    """What a device may do to rows of a table."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


class Conflict(Enum):
    """What to do with a write whose row was changed since the device read it."""

    LAST_WRITE_WINS = "last_write_wins"
    REJECT_CHANGED = "reject_changed"
    FUNCTION = "function"


@dataclass(frozen=True, slots=True)
class TableRule:
    """One table that devices may write to. `columns` None allows all of them; `key` None is the primary key. With
    several key columns, a row's id on the device is their values joined by `separator`. `compare` are columns that
    previous values may name besides `columns`. `function` is the schema and name of the conflict function, given only
    with Conflict.FUNCTION. `skip_gone` ignores updates of rows that are gone, and `accept_zero_rows` says that a write
    which changes no row is done: a trigger or rule did something else.

    Of columns that the table does not have, those in `renamed` have the name beside theirs now; with `drop_unknown` the
    others are left out. A PUT that leaves out a column of `null_when_absent` sets it to null."""

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
    compare: frozenset[str] = frozenset()
    accept_zero_rows: bool = False
    drop_unknown: bool = False
    renamed: tuple[tuple[str, str], ...] = ()
    null_when_absent: frozenset[str] = frozenset()

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class UploadSettings:
    """Settings of uploads. `login` connects and keeps the records; each transaction then switches to `role` to write.
    `tables` has the rules by the client's name of a table. Timeouts are in seconds, limits are per process. At least
    the last `window` ops of a device, and all of the last `keep_days` days, are remembered, until the device has sent
    nothing for `forget_days`. For a device that waits until somebody mends something, the source is not asked again
    within `wait_seconds`."""

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
    max_parked_bytes_per_user: int = 64 << 20
    max_devices_per_user: int = 10_000
    max_body_bytes: int = 8 << 20
    keep_days: int = 7
    forget_days: int = 180
    window: int = 10_000
    park_after_hours: int = 24
    wait_seconds: int = WAIT_SECONDS
