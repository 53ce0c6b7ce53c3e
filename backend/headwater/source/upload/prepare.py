"""What uploads need in the source: tables of their own, a role to write as, and its rights. Creates what is missing;
safe to repeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from headwater.source.connect import SourceSettings, connect
from headwater.source.upload.errors import NotPrepared
from headwater.source.upload.held import CREATE as CREATE_WAITING
from headwater.source.upload.settings import Operation, TableRule, UploadSettings
from headwater.source.upload.shape import FUNCTION_ARGUMENTS, needed_rights

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
    "waiting": CREATE_WAITING,
}

_TABLES = ("clients", "taken", "dead_letters", "waiting")
_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")

_SCHEMA_THERE = "select from pg_namespace where nspname = %s"
_MADE = "select from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = %s and c.relname = %s"
_TABLE_THERE = f"""
{_MADE} and c.relkind in ('r', 'p')
"""
_MAY_USE = """
select from pg_namespace n, pg_roles r
where n.nspname = %s and r.rolname = %s and has_schema_privilege(r.oid, n.oid, 'USAGE')
"""
_MAY_BECOME = """
select from pg_roles r, pg_roles l where r.rolname = %s and l.rolname = %s and pg_has_role(l.oid, r.oid, %s)
"""

# A right to some columns is enough: whoever granted it meant to keep the others
_RIGHTS_TO_TABLE = """
select case w when 'DELETE' then has_table_privilege(r.oid, c.oid, w) else has_any_column_privilege(r.oid, c.oid, w) end
from unnest(%s::text[]) with ordinality as wanted (w, number), pg_class c join pg_namespace n on n.oid = c.relnamespace,
     pg_roles r
where n.nspname = %s and c.relname = %s and r.rolname = %s
order by number
"""

# An identity's sequence needs no right
_SEQUENCES = """
select distinct sn.nspname, s.relname,
       exists (select from pg_roles r where r.rolname = %s and has_sequence_privilege(r.oid, s.oid, 'USAGE'))
from pg_class c join pg_namespace n on n.oid = c.relnamespace
  join pg_attrdef d on d.adrelid = c.oid
  join pg_depend p on p.classid = 'pg_attrdef'::regclass and p.objid = d.oid and p.refclassid = 'pg_class'::regclass
  join pg_class s on s.oid = p.refobjid and s.relkind = 'S' join pg_namespace sn on sn.oid = s.relnamespace
where n.nspname = %s and c.relname = %s order by 1, 2
"""

_FUNCTION = """
select exists (select from pg_roles r where r.rolname = %s and has_function_privilege(r.oid, p, 'EXECUTE'))
from to_regprocedure(%s) p where p is not null
"""


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that uploads need, whether it is there, and the SQL that makes it. `table` is whose it is, if it is of
    one table."""

    what: str
    statement: str
    there: bool
    table: TableRule | None = None


@dataclass(frozen=True, slots=True)
class PreparedUploads:
    """The SQL that was run, and what was there already."""

    done: tuple[str, ...]
    there: tuple[str, ...]


def prepare_uploads(settings: UploadSettings, admin: SourceSettings | None = None) -> PreparedUploads:
    """Create all that is missing, or nothing, connected as `admin`, by default as the upload login. Raises NotPrepared
    with the whole SQL when that role lacks a right."""
    with connect(admin or settings.login, patient=True) as conn:
        needs = tuple(needs_of(conn, settings))
        missing = tuple(need.statement for need in needs if not need.there)
        with conn.transaction():
            why = _run(conn, missing) or _still_missing(conn, settings)
            if why:
                block = "\n".join(f"{each};" for each in missing)
                how = "have somebody with the rights run what follows, or pass --admin-uri"
                what = f"role {conn.info.user} {why}; so nothing was changed"
                raise NotPrepared(what, settings.login.address, f"{how}\n\n{block}")
    return PreparedUploads(missing, tuple(need.what for need in needs if need.there))


def _run(conn: psycopg.Connection, statements: Sequence[str]) -> str:
    """Run these. Returns what Postgres says of one that it refuses."""
    for statement in statements:
        try:
            conn.execute(statement.encode())
        except psycopg.Error as error:
            reason = error.diag.message_primary or type(error).__name__
            return f"could not run {_first_line(statement)}: {reason}"
    return ""


def _still_missing(conn: psycopg.Connection, settings: UploadSettings) -> str:
    """What is missing still. Postgres only warns where it grants nothing, or less than it was asked for."""
    left = [need.what for need in needs_of(conn, settings) if not need.there]
    return f"could not grant that {', '.join(left)}" if left else ""


def missing_for_uploads(settings: UploadSettings, admin: SourceSettings | None = None) -> tuple[str, ...]:
    """The SQL that `prepare_uploads` would run."""
    with connect(admin or settings.login) as conn:
        return tuple(need.statement for need in needs_of(conn, settings) if not need.there)


def needs_of(conn: psycopg.Connection, settings: UploadSettings) -> Iterator[Need]:
    """All that uploads need but tables with their keys and policies, in the order in which it can be made."""
    login, role = settings.login.user, settings.role
    own = _there(conn, _SCHEMA_THERE, SCHEMA)
    yield Need(f"schema {SCHEMA}", f"CREATE SCHEMA {SCHEMA}", own)
    for name, create in _CREATE.items():
        kind = "index" if create.startswith("CREATE INDEX") else "table"
        yield Need(f"{kind} {SCHEMA}.{name}", create, _there(conn, _MADE, SCHEMA, name))
    yield _usage(conn, SCHEMA, login)
    for name in _TABLES:
        yield _rights(conn, login, SCHEMA, name, _RIGHTS)
    there = _there(conn, "select from pg_roles where rolname = %s", role)
    yield Need(f"role {role}", _text(conn, "CREATE ROLE {} NOLOGIN", sql.Identifier(role)), there)
    become = "SET" if conn.info.server_version >= 160000 else "MEMBER"  # 16 split SET ROLE from membership
    grant = _text(conn, "GRANT {} TO {}", sql.Identifier(role), sql.Identifier(login))
    yield Need(f"{login} may become {role}", grant, _there(conn, _MAY_BECOME, role, login, become))
    yield from _of_tables(conn, settings)


def _of_tables(conn: psycopg.Connection, settings: UploadSettings) -> Iterator[Need]:
    rules = [
        rule
        for rule in dict.fromkeys(settings.tables.values())
        if _there(conn, _TABLE_THERE, rule.schema, rule.name)  # others have findings of their own
    ]
    functions = {rule.function[0] for rule in rules if rule.function is not None}
    for schema in sorted({rule.schema for rule in rules} | functions):
        if _there(conn, _SCHEMA_THERE, schema):
            yield _usage(conn, schema, settings.role)
    for rule in rules:
        yield _rights(conn, settings.role, rule.schema, rule.name, needed_rights(rule), rule)
        if Operation.INSERT in rule.operations:
            yield from _sequences(conn, settings.role, rule)
        if rule.function is not None:
            yield from _function(conn, settings.role, rule, rule.function)


def _usage(conn: psycopg.Connection, schema: str, role: str) -> Need:
    grant = _text(conn, "GRANT USAGE ON SCHEMA {} TO {}", sql.Identifier(schema), sql.Identifier(role))
    return Need(f"{role} may use schema {schema}", grant, _there(conn, _MAY_USE, schema, role))


def _rights(
    conn: psycopg.Connection, role: str, schema: str, name: str, rights: Sequence[str], rule: TableRule | None = None
) -> Need:
    held = [row[0] for row in conn.execute(_RIGHTS_TO_TABLE, [list(rights), schema, name, role])]
    lacking = [right for right, there in zip(rights, held or [False] * len(rights), strict=True) if not there]
    listed = ", ".join(lacking or rights)
    grant = _text(conn, f"GRANT {listed} ON {{}} TO {{}}", sql.Identifier(schema, name), sql.Identifier(role))
    return Need(f"{role} may {listed} on {schema}.{name}", grant, not lacking, rule)


def _sequences(conn: psycopg.Connection, role: str, rule: TableRule) -> Iterator[Need]:
    """USAGE of the sequences that defaults of the table take numbers from."""
    for schema, name, there in conn.execute(_SEQUENCES, [role, rule.schema, rule.name]).fetchall():
        to = sql.Identifier(role)
        grant = _text(conn, "GRANT USAGE ON SEQUENCE {} TO {}", sql.Identifier(schema, name), to)
        yield Need(f"{role} may use sequence {schema}.{name}", grant, there, rule)


def _function(conn: psycopg.Connection, role: str, rule: TableRule, function: tuple[str, str]) -> Iterator[Need]:
    signature = _text(conn, f"{{}}({FUNCTION_ARGUMENTS})", sql.Identifier(*function))
    for (there,) in conn.execute(_FUNCTION, [role, signature]).fetchall():
        grant = _text(conn, f"GRANT EXECUTE ON FUNCTION {signature} TO {{}}", sql.Identifier(role))
        yield Need(f"{role} may call {'.'.join(function)}", grant, there, rule)


def _text(conn: psycopg.Connection, template: str, *parts: sql.Composable) -> str:
    return sql.SQL(template).format(*parts).as_string(conn)


def _there(conn: psycopg.Connection, query: str, *parameters: object) -> bool:
    found = conn.execute(f"select exists ({query})".encode(), parameters).fetchone()
    return found is not None and bool(found[0])


def _first_line(statement: str) -> str:
    return statement.partition("\n")[0].rstrip(" (")
