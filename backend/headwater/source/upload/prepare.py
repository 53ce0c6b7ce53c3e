"""Creates what uploads need in the source: tables of their own, a role to write as, and its rights. Safe to repeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from headwater.source.connect import SourceSettings, connect
from headwater.source.readiness.finding import Finding
from headwater.source.upload.errors import NotPrepared
from headwater.source.upload.settings import TableRule, UploadSettings
from headwater.source.upload.shape import needed_rights

SCHEMA = "headwater_upload"

_CREATE = {
    "clients": f"""CREATE TABLE {SCHEMA}.clients (
  client bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  device bytea NOT NULL UNIQUE,
  sub text NOT NULL,
  client_id text NOT NULL,
  highest_op bigint NOT NULL DEFAULT 0,
  pruned_to bigint NOT NULL DEFAULT 0,
  seen_at timestamptz NOT NULL DEFAULT now()
)""",
    "taken": f"""CREATE TABLE {SCHEMA}.taken (
  client bigint NOT NULL REFERENCES {SCHEMA}.clients ON DELETE CASCADE,
  first_op bigint NOT NULL,
  last_op bigint NOT NULL,
  ops bigint[] NOT NULL,
  digests bytea NOT NULL,
  letter bigint,
  taken_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (client, last_op)
)""",
    "clients_by_sub": f"CREATE INDEX clients_by_sub ON {SCHEMA}.clients (left(sub, 200))",
    "dead_letters": f"""CREATE TABLE {SCHEMA}.dead_letters (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  client bigint NOT NULL REFERENCES {SCHEMA}.clients ON DELETE CASCADE,
  first_op bigint NOT NULL,
  last_op bigint NOT NULL,
  digest bytea NOT NULL,
  state text NOT NULL DEFAULT 'parked' CHECK (state IN ('parked', 'applied', 'discarded')),
  code text NOT NULL,
  sqlstate text NOT NULL,
  message text NOT NULL,
  op_id bigint,
  payload json,
  claims json,
  attempts int NOT NULL DEFAULT 1,
  parked_at timestamptz NOT NULL DEFAULT now(),
  settled_at timestamptz,
  UNIQUE (client, first_op, digest)
)""",
}

_TABLES = ("clients", "taken", "dead_letters")
_MADE = "select from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = %s and c.relname = %s"
_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")


@dataclass(frozen=True, slots=True)
class PreparedUploads:
    """The SQL that was run, and findings that an operator should look at."""

    done: tuple[str, ...]
    warnings: tuple[Finding, ...]


def prepare_uploads(settings: UploadSettings, admin: SourceSettings | None = None) -> PreparedUploads:
    """Create what is missing, connected as `admin`, by default as the upload login. Raises NotPrepared with the whole
    SQL when that role lacks a right."""
    with connect(admin or settings.login, patient=True) as conn:
        statements = tuple(_missing(conn, settings))
        try:
            with conn.transaction():
                for statement in statements:
                    conn.execute(statement.encode())
        except psycopg.errors.InsufficientPrivilege:
            block = "\n".join(f"{statement};" for statement in statements)
            raise NotPrepared(
                f"role {conn.info.user} may not create what uploads need",
                settings.login.address,
                f"have somebody with the right run what follows, or pass --admin-uri\n\n{block}",
            ) from None
        except psycopg.Error as error:
            reason = error.diag.message_primary or type(error).__name__
            raise NotPrepared(
                f"Postgres refused to create what uploads need: {reason}", settings.login.address
            ) from error
        return PreparedUploads(statements, tuple(_unsecured(conn, settings)))


def missing_for_uploads(settings: UploadSettings, admin: SourceSettings | None = None) -> tuple[str, ...]:
    """The SQL that `prepare_uploads` would run."""
    with connect(admin or settings.login) as conn:
        return tuple(_missing(conn, settings))


def _missing(conn: psycopg.Connection, settings: UploadSettings) -> Iterator[str]:
    login, role = sql.Identifier(settings.login.user), sql.Identifier(settings.role)
    own = _there(conn, "select from pg_namespace where nspname = %s", SCHEMA)
    if not own:
        yield f"CREATE SCHEMA {SCHEMA}"
    for name, create in _CREATE.items():
        if not _there(conn, _MADE, SCHEMA, name):
            yield create
    if not _there(conn, "select from pg_namespace where nspname = %s and has_schema_privilege(%s, oid, 'USAGE')",
                  SCHEMA, settings.login.user):  # fmt: skip
        yield _text(conn, "GRANT USAGE ON SCHEMA {} TO {}", sql.Identifier(SCHEMA), login)
    for name in _TABLES:
        if lacking := _lacking(conn, settings.login.user, SCHEMA, name, _RIGHTS):
            yield _grant(conn, lacking, sql.Identifier(SCHEMA, name), login)
    if not _there(conn, "select from pg_roles where rolname = %s", settings.role):
        yield _text(conn, "CREATE ROLE {} NOLOGIN", role)
    become = "SET" if conn.info.server_version >= 160000 else "MEMBER"  # 16 split SET ROLE from membership
    if not _there(conn, "select from pg_roles where rolname = %s and pg_has_role(%s, oid, %s)",
                  settings.role, settings.login.user, become):  # fmt: skip
        yield _text(conn, "GRANT {} TO {}", role, login)
    yield from _rights_of_role(conn, settings)


def _rights_of_role(conn: psycopg.Connection, settings: UploadSettings) -> Iterator[str]:
    role, rules = sql.Identifier(settings.role), list(dict.fromkeys(settings.tables.values()))
    functions = {rule.function[0] for rule in rules if rule.function is not None}
    for schema in sorted({rule.schema for rule in rules} | functions):
        query = (
            "select from pg_namespace n, pg_roles r where n.nspname = %s and r.rolname = %s"
            " and has_schema_privilege(r.oid, n.oid, 'USAGE')"
        )
        if not _there(conn, query, schema, settings.role):
            yield _text(conn, "GRANT USAGE ON SCHEMA {} TO {}", sql.Identifier(schema), role)
    for rule in rules:
        if lacking := _lacking(conn, settings.role, rule.schema, rule.name, needed_rights(rule)):
            yield _grant(conn, lacking, _name(rule), role)


def _lacking(conn: psycopg.Connection, role: str, schema: str, name: str, rights: tuple[str, ...]) -> list[str]:
    query = (
        "select from pg_class c join pg_namespace n on n.oid = c.relnamespace, pg_roles r"
        " where n.nspname = %s and c.relname = %s and r.rolname = %s and has_table_privilege(r.oid, c.oid, %s)"
    )
    return [right for right in rights if not _there(conn, query, schema, name, role, right)]


def _unsecured(conn: psycopg.Connection, settings: UploadSettings) -> Iterator[Finding]:
    """Findings for tables that refuse uploads because they lack row-level security."""
    for rule in dict.fromkeys(settings.tables.values()):
        query = (
            "select from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname = %s and c.relname = %s and c.relrowsecurity"
        )
        if rule.row_security and not _there(conn, query, rule.schema, rule.name):
            statement = _text(conn, "ALTER TABLE {} ENABLE ROW LEVEL SECURITY", _name(rule))
            yield Finding(
                "HW_6122",
                f"{rule.qualified_name} has no row-level security, so uploads to it are refused",
                f"run {statement}, and make policies that say which rows are a user's",
                fatal=False,
                sql=(statement,),
            )


def _name(rule: TableRule) -> sql.Identifier:
    return sql.Identifier(rule.schema, rule.name)


def _grant(conn: psycopg.Connection, rights: Sequence[str], table: sql.Identifier, role: sql.Identifier) -> str:
    return f"GRANT {', '.join(rights)} ON {_text(conn, '{} TO {}', table, role)}"


def _text(conn: psycopg.Connection, template: str, *parts: sql.Composable) -> str:
    return sql.SQL(template).format(*parts).as_string(conn)


def _there(conn: psycopg.Connection, query: str, *parameters: object) -> bool:
    found = conn.execute(f"select exists ({query})".encode(), parameters).fetchone()
    return found is not None and bool(found[0])
