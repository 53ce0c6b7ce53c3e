"""What is said of an error of the source."""

from __future__ import annotations

import psycopg

from headwater.source.connect import SourceSettings, SourceUnreachableError, connection_error

SOURCE = SourceSettings("db", "shop", "app")


def test_message_that_quotes_a_value() -> None:
    error = psycopg.errors.InvalidTextRepresentation('invalid input syntax for type integer: "a secret"')
    told = str(connection_error(SOURCE, error))
    assert "22P02" in told
    assert "secret" not in told
    assert "no such thing" in str(connection_error(SOURCE, psycopg.errors.UndefinedObject("no such thing")))


def test_read_only_database() -> None:
    """Hosting companies set default_transaction_read_only when the disk is full."""
    error = psycopg.errors.ReadOnlySqlTransaction("cannot execute CREATE PUBLICATION in a read-only transaction")
    told = connection_error(SOURCE, error)
    assert isinstance(told, SourceUnreachableError)
    assert "is read-only" in told.what
    assert "default_transaction_read_only" in told.fix
    assert "promote" not in told.fix


def test_quoted_names() -> None:
    source = SourceSettings("db", "my shop", 'app"; drop')
    told = connection_error(source, psycopg.errors.InsufficientPrivilege("permission denied to start WAL sender"))
    assert 'ALTER ROLE "app""; drop" REPLICATION' in told.fix
    reserved = connection_error(SourceSettings("db", "shop", "user"), psycopg.errors.InsufficientPrivilege("no"))
    assert 'ALTER ROLE "user" REPLICATION' in reserved.fix
    assert "ALTER ROLE app REPLICATION" in connection_error(SOURCE, psycopg.errors.InsufficientPrivilege("no")).fix
