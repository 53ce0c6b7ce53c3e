"""What is said of an error of the source."""

from __future__ import annotations

import psycopg

from headwater.source.connect import SourceSettings, connection_error

SOURCE = SourceSettings("db", "shop", "app")


def test_a_message_that_quotes_a_value_is_not_repeated() -> None:
    error = psycopg.errors.InvalidTextRepresentation('invalid input syntax for type integer: "a secret"')
    told = str(connection_error(SOURCE, error))
    assert "22P02" in told
    assert "secret" not in told
    assert "no such thing" in str(connection_error(SOURCE, psycopg.errors.UndefinedObject("no such thing")))
