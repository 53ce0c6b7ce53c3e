"""What a start needs of the store's database: that the source does not publish the store, and rights."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from headwater.storage.address import PostgresAddress
from headwater.storage.contract.stats import Lacking
from headwater.storage.contract.store import StorePublishedError
from headwater.storage.postgres.connection import connect_bare, postgres_errors

_PUBLISHED = """
select pubname from pg_publication_tables where schemaname = %(schema)s and pubname = any(%(names)s)
union select pubname from pg_publication where puballtables and pubname = any(%(names)s)
"""
_RIGHTS = """
select current_user::text, has_database_privilege(current_database(), 'CREATE'),
       n.oid is not null,
       coalesce(has_schema_privilege(n.oid, 'USAGE'), false) and coalesce(has_schema_privilege(n.oid, 'CREATE'), false)
from (select) one left join pg_namespace n on n.nspname = %s
"""
_FOREIGN = """
select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relkind in ('r', 'p', 'S') and not pg_has_role(c.relowner, 'USAGE') order by 1
"""


def raise_if_published(address: PostgresAddress, publications: Sequence[str]) -> None:
    """See `Backend.raise_if_published`."""
    with connect_bare(address) as connection, postgres_errors(address):
        given = {"schema": address.schema, "names": list(publications)}
        names = [row[0] for row in connection.execute(_PUBLISHED, given)]
    if names:
        raise StorePublishedError(
            f"the publication {names[0]} publishes the store's own tables",
            str(address),
            "publish the app's tables by name, or its schema (`create publication … for tables in schema public`), or"
            " give the store a database of its own",
        )


def lacking(address: PostgresAddress) -> list[Lacking]:
    """See `Backend.lacking`."""
    with connect_bare(address) as connection, postgres_errors(address):
        ((user, may_create, there, may_use),) = connection.execute(_RIGHTS, [address.schema]).fetchall()
        role, schema = sql.Identifier(user), sql.Identifier(address.schema)

        def written(statement: str, *names: sql.Identifier) -> tuple[str, ...]:
            return (sql.SQL(statement).format(*names).as_string(connection),)

        if not there:
            what = f"role {user} may not create the schema {address.schema} of the store"
            grant = written("CREATE SCHEMA {} AUTHORIZATION {}", schema, role)
            return [] if may_create else [Lacking(what, grant)]
        if not may_use:
            what = f"role {user} may not create tables in the schema {address.schema} of the store"
            return [Lacking(what, written("GRANT USAGE, CREATE ON SCHEMA {} TO {}", schema, role))]
        foreign = [str(row[0]) for row in connection.execute(_FOREIGN, [address.schema])]
        statements = [
            written("ALTER TABLE {} OWNER TO {}", sql.Identifier(address.schema, name), role)[0] for name in foreign
        ]
        what = f"role {user} does not own all tables of the store, and so can't upgrade them: {', '.join(foreign[:3])}"
        return [Lacking(what, tuple(statements))] if foreign else []
