"""Where a store is: small, frozen data that travels to executors."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SqliteAddress:
    """The embedded store: a directory on this machine."""

    directory: str

    @property
    def one_machine(self) -> bool:
        """Whether only this machine reaches it."""
        return True

    @property
    def kept_elsewhere(self) -> str:
        """Where its medium keeps what was removed, for somebody else to see to."""
        return "blocks that the file system has freed: only the disk's encryption or trimming helps"

    def __str__(self) -> str:
        return self.directory


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """A store in a Postgres database. `conninfo` is a libpq connection string, with its secrets; `place` names the
    database in messages. `pem` holds the texts of the files that libpq is to be given, by the parameter's name."""

    conninfo: str = field(repr=False)
    schema: str = "headwater"
    place: str = "postgres"
    pem: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def one_machine(self) -> bool:
        """Whether only this machine reaches it."""
        return False

    @property
    def kept_elsewhere(self) -> str:
        """Where its medium keeps what was removed, for somebody else to see to."""
        return "the write-ahead log, replicas and archives of the store's Postgres, and what its file system has freed"

    def __str__(self) -> str:
        return f"{self.place}, schema {self.schema}"


StoreAddress = SqliteAddress | PostgresAddress
