"""Refuses a store that is published by the source that it stores."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.storage.address import PostgresAddress
from headwater.storage.contract.store import StorePublishedError
from headwater.storage.postgres.connection import connect, postgres_errors


def raise_if_published(address: PostgresAddress, publications: Sequence[str]) -> None:
    """See `Backend.raise_if_published`."""
    query = "select distinct pubname from pg_publication_tables where schemaname = %s and pubname = any(%s)"
    with connect(address) as connection, postgres_errors(address):
        names = [row[0] for row in connection.execute(query, [address.schema, list(publications)])]
    if names:
        raise StorePublishedError(
            f"the publication {names[0]} publishes the store's own tables",
            str(address),
            "publish the app's tables by name, or its schema (`create publication … for tables in schema public`), or"
            " give the store a database of its own",
        )
