"""The address of a store: small, frozen data that is sent to executors."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SqliteAddress:
    """The embedded store: a directory on this machine."""

    directory: str

    @property
    def one_machine(self) -> bool:
        """Whether only this machine can reach it."""
        return True

    @property
    def kept_elsewhere(self) -> str:
        """Where the medium may keep deleted data, which Headwater can't erase."""
        return "blocks that the file system has freed: only the disk's encryption or trimming helps"

    def __str__(self) -> str:
        return self.directory


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """A store in a Postgres database. `conninfo` is a libpq connection string with its secrets; `place` names the
    database in messages. `pem` holds the content of certificate files for libpq, by parameter name."""

    conninfo: str = field(repr=False)
    schema: str = "headwater"
    place: str = "postgres"
    pem: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def one_machine(self) -> bool:
        """Whether only this machine can reach it."""
        return False

    @property
    def kept_elsewhere(self) -> str:
        """Where the medium may keep deleted data, which Headwater can't erase."""
        return "the write-ahead log, replicas and archives of the store's Postgres, and what its file system has freed"

    def __str__(self) -> str:
        return f"{self.place}, schema {self.schema}"


StoreAddress = SqliteAddress | PostgresAddress
