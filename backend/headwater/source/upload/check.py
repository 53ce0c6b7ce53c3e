"""Finds out whether uploads can work, before a device sends one: tries what an upload does, as the roles that do it,
and changes nothing. Also tells what devices wait for. `source prepare --upload`, `source status` and `doctor` have the
same findings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from headwater.errors import HeadwaterError
from headwater.source.catalog.named import FORMS
from headwater.source.connect import connect, source_errors
from headwater.source.readiness.finding import Finding
from headwater.source.upload import held, ledger, statements
from headwater.source.upload.connections import Connections, become, begin
from headwater.source.upload.entries import Device, entry_of, transaction_of
from headwater.source.upload.errors import Mender, NotPrepared, Refused, mender_of
from headwater.source.upload.prepare import Need, needs_of
from headwater.source.upload.settings import Conflict, Operation, TableRule, UploadSettings
from headwater.source.upload.shape import TableShape, read_shapes
from headwater.source.upload.statements import Statement

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
    """What the catalog says of a table."""

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
            found = {rule: _of_table(conn, settings.role, rule) for rule in dict.fromkeys(settings.tables.values())}
            columns = {rule: _columns(conn, settings.role, rule) for rule in found}
        barred = {need.table for need in needs}
        lacking = [_lacking([need for need in needs if need.table is table]) for table in dict.fromkeys(barred)]
        known = [*lacking, *(each for several in found.values() for each in several)]
        if None in barred:
            return tuple(known)
        tried = {rule: columns[rule] for rule, several in found.items() if rule not in barred and not _fatal(several)}
        return tuple(dict.fromkeys([*held.waiting(settings), *known, *asyncio.run(_try(settings, tried))]))
    except HeadwaterError as error:
        return (_finding(error),)


def _lacking(needs: Sequence[Need]) -> Finding:
    """That these are missing."""
    what = f"uploads lack what they need: {', '.join(need.what for need in needs)}"
    statements = tuple(need.statement for need in needs)
    how = f", or {statements[0]}" if len(needs) == 1 else ""
    fix = f"run `headwater source prepare --upload`, with --admin-uri if the login may not{how}"
    return Finding(NotPrepared.code, what, fix, sql=statements)


def _fatal(findings: Sequence[Finding]) -> bool:
    return any(finding.fatal for finding in findings)


def _finding(error: HeadwaterError) -> Finding:
    where = f"{error.where}: " if error.where else ""
    return Finding(error.code, f"uploads: {where}{error.what}", error.fix)


def _of_table(conn: psycopg.Connection, role: str, rule: TableRule) -> list[Finding]:
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
    columns = {column.name: column for column in _columns(conn, role, rule)}
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
    connections, found = Connections(settings), list[Finding]()
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
    await ledger.park(conn, settings, device, transaction_of([entry_of(2, {})]), Refused("tried"))
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


def _writes(shape: TableShape, columns: Sequence[_Column]) -> Iterator[Statement]:
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
        yield Statement(into, (None,) * len(names))
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
