"""What uploads need in the source: tables of their own, a role to write as, and its rights. Creates what is missing;
safe to repeat."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from headwater.errors import HeadwaterError
from headwater.source.catalog.schema import FORMS
from headwater.source.connect import SourceSettings, connect, source_errors
from headwater.source.readiness.finding import Finding
from headwater.source.upload import ledger, statements
from headwater.source.upload.entries import Device, entry_of, transaction_of
from headwater.source.upload.errors import Mender, UploadRefusedError, mender_of
from headwater.source.upload.settings import (
    Conflict,
    Operation,
    TableRule,
    UploadConnections,
    UploadSettings,
    become,
    begin,
)
from headwater.source.upload.shape import (
    FUNCTION_ARGUMENTS,
    TableShape,
    needed_rights,
    read_shapes,
    rights_of,
    sql_text,
)
from headwater.source.upload.statements import SqlStatement

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
    "waiting": f"""CREATE TABLE {SCHEMA}.waiting (
  client bigint PRIMARY KEY REFERENCES {SCHEMA}.clients ON DELETE CASCADE,
  last_op bigint NOT NULL,
  digest bytea NOT NULL,
  code text NOT NULL,
  place text NOT NULL,
  what text NOT NULL,
  fix text NOT NULL,
  app_version text NOT NULL,
  tries int NOT NULL DEFAULT 1,
  since timestamptz NOT NULL DEFAULT now(),
  tried_at timestamptz NOT NULL DEFAULT now()
)""",
}

_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")

_SCHEMA_THERE = "select from pg_namespace where nspname = %s"
_MADE = "select from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = %s and c.relname = %s"
_TABLE_THERE = f"{_MADE} and c.relkind in ('r', 'p')"
_MAY_USE = """
select from pg_namespace n, pg_roles r
where n.nspname = %s and r.rolname = %s and has_schema_privilege(r.oid, n.oid, 'USAGE')
"""
_MAY_BECOME = """
select from pg_roles r, pg_roles l where r.rolname = %s and l.rolname = %s and pg_has_role(l.oid, r.oid, %s)
"""

_RIGHTS_TO_TABLE = f"""
select unnest({rights_of("r.oid")}) from pg_class c join pg_namespace n on n.oid = c.relnamespace, pg_roles r
where n.nspname = %s and c.relname = %s and r.rolname = %s
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
    """Create all that is missing, or nothing, connected as `admin`, by default as the upload login. Raises HW_6120
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
                raise HeadwaterError(what, settings.login.address, f"{how}\n\n{block}", code="HW_6120")
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
    tables = [name for name, create in _CREATE.items() if create.startswith("CREATE TABLE")]
    for name, create in _CREATE.items():
        kind = "table" if name in tables else "index"
        yield Need(f"{kind} {SCHEMA}.{name}", create, _there(conn, _MADE, SCHEMA, name))
    yield _usage(conn, SCHEMA, login)
    for name in tables:
        yield _rights(conn, login, SCHEMA, name, _RIGHTS)
    there = _there(conn, "select from pg_roles where rolname = %s", role)
    yield Need(f"role {role}", sql_text("CREATE ROLE {} NOLOGIN", sql.Identifier(role)), there)
    become = "SET" if conn.info.server_version >= 160000 else "MEMBER"  # 16 split SET ROLE from membership
    grant = sql_text("GRANT {} TO {}", sql.Identifier(role), sql.Identifier(login))
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
    grant = sql_text("GRANT USAGE ON SCHEMA {} TO {}", sql.Identifier(schema), sql.Identifier(role))
    return Need(f"{role} may use schema {schema}", grant, _there(conn, _MAY_USE, schema, role))


def _rights(
    conn: psycopg.Connection, role: str, schema: str, name: str, rights: Sequence[str], rule: TableRule | None = None
) -> Need:
    held = {right for (right,) in conn.execute(_RIGHTS_TO_TABLE.encode(), [schema, name, role])}
    lacking = [right for right in rights if right not in held]
    listed = ", ".join(lacking or rights)
    grant = sql_text(f"GRANT {listed} ON {{}} TO {{}}", sql.Identifier(schema, name), sql.Identifier(role))
    return Need(f"{role} may {listed} on {schema}.{name}", grant, not lacking, rule)


def _sequences(conn: psycopg.Connection, role: str, rule: TableRule) -> Iterator[Need]:
    """USAGE of the sequences that defaults of the table take numbers from."""
    for schema, name, there in conn.execute(_SEQUENCES, [role, rule.schema, rule.name]).fetchall():
        to = sql.Identifier(role)
        grant = sql_text("GRANT USAGE ON SEQUENCE {} TO {}", sql.Identifier(schema, name), to)
        yield Need(f"{role} may use sequence {schema}.{name}", grant, there, rule)


def _function(conn: psycopg.Connection, role: str, rule: TableRule, function: tuple[str, str]) -> Iterator[Need]:
    signature = sql_text(f"{{}}({FUNCTION_ARGUMENTS})", sql.Identifier(*function))
    for (there,) in conn.execute(_FUNCTION, [role, signature]).fetchall():
        grant = sql_text(f"GRANT EXECUTE ON FUNCTION {signature} TO {{}}", sql.Identifier(role))
        yield Need(f"{role} may call {'.'.join(function)}", grant, there, rule)


def _there(conn: psycopg.Connection, query: str, *parameters: object) -> bool:
    found = conn.execute(f"select exists ({query})".encode(), parameters).fetchone()
    return found is not None and bool(found[0])


def _first_line(statement: str) -> str:
    return statement.partition("\n")[0].rstrip(" (")


UNFIT = "HW_6126"
"""A table of `upload.tables` has something by which uploads to it fail, or do something unexpected."""

WAITING = "HW_6127"
"""Dead letters of uploads wait for an operator to retry or discard them."""

MOST_COUNTED = 10_000
"""How many dead letters are counted at most."""

_COMMANDS = {Operation.INSERT: "a", Operation.UPDATE: "w", Operation.DELETE: "d"}
_EVENTS = {Operation.UPDATE: "2", Operation.INSERT: "3", Operation.DELETE: "4"}

# `forbidden` has the commands, in pg_policy's letters, for which no policy lets the role see or write any row
_TABLE = """
select c.relkind::text as kind, c.relreplident::text as identity, c.relrowsecurity as secured, key.columns as key,
  exists (select from pg_trigger t where t.tgrelid = c.oid and not t.tgisinternal and t.tgtype & 7 = 7) as fills_rows,
  array(select array[w.ev_type::text, w.rulename::text] from pg_rewrite w
        where w.ev_class = c.oid and w.ev_type <> '1' and w.ev_enabled <> 'D' order by 1) as rules,
  array(select command from unnest(array['a', 'w', 'd']) command where not exists (
    select from pg_policy p, unnest(p.polroles) m, pg_roles r
    where p.polrelid = c.oid and p.polpermissive and p.polcmd::text in (command, '*') and r.rolname = %(role)s
      and case when m = 0 then true else pg_has_role(r.oid, m, 'USAGE') end)) as forbidden
from pg_class c join pg_namespace n on n.oid = c.relnamespace cross join lateral (
  select coalesce(%(key)s::text[], (
    select array_agg(a.attname::text order by k.number)
    from pg_index i cross join unnest(i.indkey) with ordinality k (attnum, number)
      join pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum
    where i.indrelid = c.oid and i.indisprimary and k.number <= i.indnkeyatts), '{}') as columns) key
where n.nspname = %(schema)s and c.relname = %(name)s and c.relkind in ('r', 'p', 'v', 'm', 'f')
"""

_COLUMNS = """
select a.attname as name, a.attnotnull as filled, a.attidentity::text as identity, a.attgenerated <> '' as generated,
  a.atthasdef and a.attgenerated = '' as has_default,
  exists (select from pg_attrdef d join pg_depend p on p.classid = 'pg_attrdef'::regclass and p.objid = d.oid
            join pg_class s on p.refclassid = 'pg_class'::regclass and s.oid = p.refobjid and s.relkind = 'S'
          where d.adrelid = a.attrelid and d.adnum = a.attnum) as counted,
  coalesce(has_column_privilege(r.oid, a.attrelid, a.attnum, 'INSERT'), false) as may_insert,
  coalesce(has_column_privilege(r.oid, a.attrelid, a.attnum, 'UPDATE'), false) as may_update
from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
  left join pg_roles r on r.rolname = %(role)s
where n.nspname = %(schema)s and c.relname = %(name)s and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""

_WAITING = f"""
select count(*), min(parked_at) from (
  select parked_at from headwater_upload.dead_letters where state = 'parked' limit {MOST_COUNTED}) d
"""


@dataclass(frozen=True, slots=True)
class _Table:
    kind: str
    identity: str
    secured: bool
    key: list[str]
    fills_rows: bool
    rules: list[list[str]]
    forbidden: list[str]


@dataclass(frozen=True, slots=True)
class _Column:
    """What the catalog says of a column. The default of a `counted` one takes numbers from a sequence."""

    name: str
    filled: bool
    identity: str
    generated: bool
    has_default: bool
    counted: bool
    may_insert: bool
    may_update: bool

    @property
    def writable(self) -> bool:
        return not self.generated and self.identity != "a"


def check_uploads(settings: UploadSettings) -> tuple[Finding, ...]:
    """All that keeps uploads from working, or may surprise, by table. Connects as the upload login and becomes the
    role, records and parks a transaction, and has Postgres plan the writes to each table; nothing of it is kept."""
    try:
        with connect(settings.login, application_name="headwater check") as conn, source_errors(settings.login):
            needs = [need for need in needs_of(conn, settings) if not need.there]
            columns = {rule: _columns(conn, settings.role, rule) for rule in settings.tables.values()}
            found = {rule: _of_table(conn, settings.role, rule, listed) for rule, listed in columns.items()}
        barred = {need.table for need in needs}
        lacking = [_lacking([need for need in needs if need.table is table]) for table in dict.fromkeys(barred)]
        known = [*lacking, *(each for several in found.values() for each in several)]
        if None in barred:
            return tuple(known)
        fit = [rule for rule, several in found.items() if not any(finding.fatal for finding in several)]
        tried = {rule: columns[rule] for rule in fit if rule not in barred}
        return tuple(dict.fromkeys([*ledger.waiting(settings), *known, *asyncio.run(_try(settings, tried))]))
    except HeadwaterError as error:
        return (_finding(error),)


def _lacking(needs: Sequence[Need]) -> Finding:
    what = f"uploads lack what they need: {', '.join(need.what for need in needs)}"
    statements = tuple(need.statement for need in needs)
    how = f", or {statements[0]}" if len(needs) == 1 else ""
    fix = f"run `headwater source prepare --upload`, with --admin-uri if the login may not{how}"
    return Finding("HW_6120", what, fix, sql=statements)


def _finding(error: HeadwaterError) -> Finding:
    where = f"{error.where}: " if error.where else ""
    return Finding(error.code, f"uploads: {where}{error.what}", error.fix)


def _of_table(conn: psycopg.Connection, role: str, rule: TableRule, listed: Sequence[_Column]) -> list[Finding]:
    """What the catalog tells of a table. That it is missing, or lacks row-level security or a key, is found when it is
    tried."""
    parameters = {
        "role": role, "schema": rule.schema, "name": rule.name, "key": None if rule.key is None else list(rule.key),
    }  # fmt: skip
    with conn.cursor(row_factory=class_row(_Table)) as cursor:
        table = cursor.execute(_TABLE, parameters).fetchone()
    if table is None:
        return []
    if table.kind in FORMS:
        what = f"is {FORMS[table.kind]}, to which uploads can't be written under row-level security"
        return [_told(rule, what, "name the tables that it shows")]
    columns = {column.name: column for column in listed}
    return [
        *_of_key(rule, table, [columns[name] for name in table.key if name in columns]),
        *_of_columns(rule, table, columns),
        *_of_rules(rule, table),
        *_of_policies(rule, table, role),
    ]


def _columns(conn: psycopg.Connection, role: str, rule: TableRule) -> list[_Column]:
    with conn.cursor(row_factory=class_row(_Column)) as cursor:
        return cursor.execute(_COLUMNS, {"role": role, "schema": rule.schema, "name": rule.name}).fetchall()


def _of_key(rule: TableRule, table: _Table, key: Sequence[_Column]) -> Iterator[Finding]:
    name = sql.Identifier(rule.schema, rule.name).as_string()
    if len(table.key) > 1 and table.identity != "d":
        what = "has a replica identity that is not its primary key, so `row_id()` of a sync config is no key of it"
        fix = "select the key's values as `id`, joined by key_separator, or set REPLICA IDENTITY DEFAULT"
        yield _told(rule, what, fix, fatal=False)
    if Operation.INSERT not in rule.operations:
        return
    for column in key:
        if not column.writable:
            quoted = sql.Identifier(column.name).as_string()
            how = f"run ALTER TABLE {name} ALTER COLUMN {quoted} SET GENERATED BY DEFAULT"
            if column.generated:
                how = "name another unique key as `key`"
            what = f"has a key that Postgres makes itself, {column.name}, so that no device can insert a row"
            yield _told(rule, what, f"{how}, or take insert out of `operations`")
        elif column.counted or column.identity:
            what = f"has a key that Postgres counts, {column.name}: numbers that devices choose clash with its own"
            yield _told(rule, what, "have devices make the key, as a uuid", fatal=False)
        elif column.has_default and len(key) > 1:
            what = f"has a default for {column.name}, a part of its key, which is not used: the row id names all parts"
            yield _told(rule, what, "have the client put the whole key into the row id", fatal=False)


def _of_columns(rule: TableRule, table: _Table, columns: dict[str, _Column]) -> Iterator[Finding]:
    named = sorted({*(rule.columns or ()), *rule.compare, *rule.null_when_absent, *(new for _, new in rule.renamed)})
    if unknown := [name for name in named if name not in columns]:
        what = f"has no {_listed(unknown, 'column')}, though upload.tables does"
        yield _told(rule, what, "correct what it says of the table, such as `columns`")
    if keys := sorted(rule.null_when_absent.intersection(table.key)):
        what = f"can't set {_listed(keys, 'column')} to null, which is its key, so that every PUT is refused"
        yield _told(rule, what, "take that out of `null_when_absent`")
    if rule.columns is None:
        if rule.conflict is Conflict.REJECT_CHANGED:
            what = "compares previous values of any column that the role may read, so devices can try what it holds"
            fix = "list `columns`, and under `compare` what else devices are sent"
            yield _told(rule, what, fix, fatal=False)
        return
    given = {*rule.columns, *table.key}
    if barred := sorted(({*rule.null_when_absent, *(new for _, new in rule.renamed)} & columns.keys()) - given):
        what = f"does not let devices write {_listed(barred, 'column')}, which `null_when_absent` or `map` writes"
        yield _told(rule, what, "name that in `columns` too")
    if made := [name for name in sorted(rule.columns & columns.keys()) if not columns[name].writable]:
        yield _told(rule, f"makes {_listed(made, 'column')} itself", "take that out of `columns`")
    if Operation.INSERT not in rule.operations:
        return
    unfilled = [
        column.name
        for column in columns.values()
        if column.filled and column.name not in given and column.writable and not column.has_default
        and not column.identity
    ]  # fmt: skip
    if unfilled:
        what = f"needs a value for {_listed(unfilled, 'column')}, which devices may not write"
        if table.fills_rows:
            what = f"{what}; unless a trigger gives one, no row can be inserted"
        fix = "add a default, or name what is missing in `columns`"
        yield _told(rule, what, fix, fatal=not table.fills_rows)


def _of_rules(rule: TableRule, table: _Table) -> Iterator[Finding]:
    events = {_EVENTS[operation] for operation in rule.operations}
    for event, name in table.rules:
        if event in events:
            what = f"has a rule, {name}, which rewrites the writes of devices: Postgres then may write something else"
            yield _told(rule, what, "have a trigger do it instead, or look at its rows after a test", fatal=False)


def _of_policies(rule: TableRule, table: _Table, role: str) -> Iterator[Finding]:
    if not table.secured:
        return
    forbidden = [
        operation.value.upper()
        for operation, command in _COMMANDS.items()
        if operation in rule.operations and command in table.forbidden
    ]
    if forbidden:
        what = f"has no policy by which role {role} may {' or '.join(forbidden)}: all of these are refused"
        fix = "create one, or take it out of `operations`"
        yield _told(rule, what, fix, fatal=len(forbidden) == len(rule.operations))


def _told(rule: TableRule, what: str, fix: str, *, fatal: bool = True) -> Finding:
    return Finding(UNFIT, f"uploads: {rule.qualified_name} {what}", fix, fatal)


def _listed(names: Sequence[str], what: str) -> str:
    return f"{what}{'s' if len(names) > 1 else ''} {', '.join(names)}"


async def _try(settings: UploadSettings, tables: dict[TableRule, list[_Column]]) -> list[Finding]:
    """Do what an upload does, in a transaction that is rolled back."""
    connections, found = UploadConnections(settings), list[Finding]()
    device = Device("", f"headwater check {uuid4()}", "{}")  # of its own, so that checks do not wait for each other
    try:
        async with connections.use() as conn, conn.transaction(force_rollback=True):
            await begin(conn, settings)
            found += await _try_records(conn, settings, device)
            await become(conn, settings, device)
            for rule, columns in tables.items():
                found += await _try_table(conn, rule, columns)
    except HeadwaterError as error:
        found.append(_finding(error))
    except psycopg.Error as error:
        found.append(_refused("the tables that record them", error))
    finally:
        await connections.close()
    return found


async def _try_records(conn: psycopg.AsyncConnection, settings: UploadSettings, device: Device) -> list[Finding]:
    """Record one transaction, and park another; tell of dead letters that wait. Raises HeadwaterError."""
    ((waiting, oldest),) = await (await conn.execute(_WAITING)).fetchall()
    client = await ledger.open_client(conn, settings, device)
    await ledger.note(conn, settings, client, [entry_of(1, {})])
    await ledger.park(conn, settings, device, transaction_of([entry_of(2, {})]), UploadRefusedError("tried"))
    if not waiting:
        return []
    more = " or more" if waiting == MOST_COUNTED else ""
    what = f"dead letters of uploads wait: {waiting:,}{more}, the oldest since {oldest:%Y-%m-%d %H:%M} UTC"
    return [Finding(WAITING, what, "see `headwater upload list`, and retry or discard them", fatal=False)]


async def _try_table(conn: psycopg.AsyncConnection, rule: TableRule, columns: Sequence[_Column]) -> list[Finding]:
    try:
        async with conn.transaction():
            shape = (await read_shapes(conn, [rule]))[rule]
    except HeadwaterError as error:
        return [Finding(error.code, f"{error.where}: {error.what}", error.fix)]
    found = []
    for statement in _writes(shape, columns):
        try:
            async with conn.transaction():
                # Postgres checks rights, policies and rules of a statement that it only plans
                planned = sql.SQL("explain {}").format(statement.query)
                await conn.execute(planned, [None] * len(statement.parameters))
        except psycopg.Error as error:
            if mender_of(error, shape.columns) is not Mender.USER:  # it would be the nulls here, or missing claims
                found.append(_refused(rule.qualified_name, error))
    return found


def _writes(shape: TableShape, columns: Sequence[_Column]) -> Iterator[SqlStatement]:
    """The statements of uploads that write all that devices may."""
    rule, row_id = shape.rule, shape.rule.separator.join([""] * len(shape.key))
    named = [
        each for each in columns
        if each.writable and each.name not in shape.key and each.name in (rule.columns or (each.name,))
    ]  # fmt: skip
    inserted = [each.name for each in named if rule.columns or each.may_insert]
    updated = {each.name: None for each in named if rule.columns or each.may_update}
    compared = [each.name for each in shape.columns.values() if each.readable]
    if rule.columns is not None:
        compared = [name for name in compared if name in rule.columns | rule.compare]
    old = dict.fromkeys(compared) if rule.conflict is Conflict.REJECT_CHANGED else None
    if Operation.INSERT in rule.operations:
        names = (*shape.key, *inserted)
        into = sql.SQL("insert into {} ({}) values ({})").format(
            statements.named(rule.schema, rule.name),
            sql.SQL(", ").join([statements.named(name) for name in names]),
            sql.SQL(", ").join([sql.Placeholder()] * len(names)),
        )
        yield SqlStatement(into, (None,) * len(names))
    if Operation.UPDATE in rule.operations and updated:
        yield statements.update(shape, row_id, updated, old)
    if Operation.DELETE in rule.operations:
        yield statements.delete(shape, row_id, old)


def _refused(where: str, error: psycopg.Error) -> Finding:
    said = error.diag.message_primary or type(error).__name__
    what = f"uploads: Postgres refuses what devices may write to {where}: {said} ({error.sqlstate})"
    if mender_of(error) is Mender.NOBODY:
        return Finding(UNFIT, f"uploads: {where} could not be tried: {said} ({error.sqlstate})", "try it again")
    return Finding(UNFIT, what, _FIXES.get(error.sqlstate or "", "change the table, or what upload.tables allows"))


_FIXES = {
    "42501": "grant it to the upload role, or leave it out of upload.tables",
    "42P17": "correct the policies of the table",
}
