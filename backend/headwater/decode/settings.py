"""The session settings that every connection to the source pins, on both the snapshot's and the stream's side.

A role or a database may set any of these by default, and each changes the text that Postgres prints or ends a long
read. With the same values on both sides a cell reads the same from COPY as from pgoutput, byte by byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

SESSION_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "TimeZone": "UTC",
        "DateStyle": "ISO",
        "IntervalStyle": "postgres",
        "bytea_output": "hex",
        "extra_float_digits": "1",  # shortest text that reads back as the same float
        "client_encoding": "UTF8",
        "row_security": "off",  # a policy that would hide rows from us is then an error
        "statement_timeout": "0",
        "idle_in_transaction_session_timeout": "0",  # would end the keeper of an exported snapshot
        "idle_session_timeout": "0",  # from Postgres 14
    }
)
"""lock_timeout is not among them: waiting for a lock is the operator's to bound."""

_TRANSACTION_TIMEOUT_SINCE = 170000


def settings_options() -> str:
    """The settings as libpq's `options` parameter, for ordinary and replication connections alike.

    libpq sends `client_encoding` of its own accord when PGCLIENTENCODING is set, and that wins over `options`; pass
    `client_encoding` as a connection parameter too.
    """
    return " ".join(f"-c {name}={value}" for name, value in SESSION_SETTINGS.items())


def statements_for(server_version: int) -> tuple[str, ...]:
    """Statements to run after connecting, for settings that older servers would refuse the connection over.

    `server_version` is libpq's number, 170004 for 17.4.
    """
    return ("set transaction_timeout = 0",) if server_version >= _TRANSACTION_TIMEOUT_SINCE else ()
