"""The session settings that every connection to the source pins, for snapshots and for the stream.

A role or a database may have other defaults, which would change the text that Postgres prints, or end a long read. With
these settings, COPY and pgoutput give the same text for a value, byte by byte.
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
        "extra_float_digits": "1",  # the shortest text that is exact
        "lc_monetary": "C",  # money as $1,234.50
        "client_encoding": "UTF8",
        "row_security": "off",  # a policy that would hide rows raises an error instead
        "statement_timeout": "0",
        "idle_in_transaction_session_timeout": "0",  # would end the keeper of an exported snapshot
        "idle_session_timeout": "0",  # from Postgres 14
    }
)
"""lock_timeout is left out: it is for the operator to limit how long ordinary connections wait for a lock."""

_TRANSACTION_TIMEOUT_SINCE = 170000


def settings_options() -> str:
    """The settings as libpq's `options` parameter, for ordinary and replication connections alike.

    libpq sends `client_encoding` by itself when PGCLIENTENCODING is set, and that overrides `options`; so pass
    `client_encoding` as a connection parameter too.
    """
    return " ".join(f"-c {name}={value}" for name, value in SESSION_SETTINGS.items())


def statements_for(server_version: int) -> tuple[str, ...]:
    """Statements to run after connecting, for settings that older servers do not know, and would refuse to connect
    with.

    `server_version` is libpq's number, 170004 for 17.4.
    """
    return ("set transaction_timeout = 0",) if server_version >= _TRANSACTION_TIMEOUT_SINCE else ()
