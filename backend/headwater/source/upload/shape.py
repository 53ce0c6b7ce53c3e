"""Reads the tables that an upload writes to, in its own transaction, and checks that uploads may write to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from headwater.errors import HeadwaterError
from headwater.source.upload.errors import UploadBlockedError
from headwater.source.upload.settings import Conflict, Operation, TableRule


def rights_of(role: str) -> str:
    """SQL: the rights that a role has to the table `c`. A right to some columns is enough: whoever granted it meant to
    keep the others."""
    return f"""
    array(select w from unnest(array['SELECT', 'INSERT', 'UPDATE']) w where has_any_column_privilege({role}, c.oid, w)
          union all select 'DELETE' where has_table_privilege({role}, c.oid, 'DELETE'))"""


_TABLES = f"""
select w.number, c.oid::bigint, row_security_active(c.oid), pg_get_userbyid(c.relowner) = current_user,
       has_schema_privilege(n.oid, 'USAGE'), {rights_of("current_user")}
from unnest(%s::text[], %s::text[]) with ordinality as w (schema, name, number)
  join pg_namespace n on n.nspname = w.schema
  join pg_class c on c.relnamespace = n.oid and c.relname = w.name and c.relkind in ('r', 'p')
"""

# `base` is the type below all domains. The last column says whether its values, or those of an array of it, have an `=`
# operator of their own: others, such as json, are compared as text.
_COLUMNS = """
select a.attrelid::bigint, a.attname, format_type(a.atttypid, a.atttypmod),
       base.oid::bigint, base.typtype::text, base.typcategory = 'A', a.attgenerated <> '' or a.attidentity = 'a',
       has_column_privilege(a.attrelid, a.attnum, 'SELECT'),
       base.typtype in ('r', 'm') or base.typtype = 'b' and exists (
         select from pg_operator o, (select case base.typcategory when 'A' then base.typelem else base.oid end) e (oid)
         where o.oprname = '=' and o.oprleft = e.oid and o.oprright = e.oid)
from pg_attribute a cross join lateral (
  with recursive part as (
    select t.oid, t.typtype, t.typcategory, t.typelem, t.typbasetype from pg_type t where t.oid = a.atttypid
    union all
    select t.oid, t.typtype, t.typcategory, t.typelem, t.typbasetype
    from pg_type t join part on t.oid = part.typbasetype
  ) select * from part where typtype <> 'd') base
where a.attrelid = any(%s::oid[]) and a.attnum > 0 and not a.attisdropped
order by a.attrelid, a.attnum
"""

_KEYS = """
select i.indrelid::bigint, i.indisprimary, array_agg(a.attname::text order by k.number)
from pg_index i cross join unnest(i.indkey) with ordinality as k (attnum, number)
  join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
where i.indrelid = any(%s::oid[]) and i.indisunique and i.indisvalid
  and i.indpred is null and i.indexprs is null and k.number <= i.indnkeyatts
group by i.indexrelid, i.indrelid, i.indisprimary
"""

_ROLE = "select rolname, rolsuper or rolbypassrls from pg_roles where rolname = current_user"

_FUNCTION = """
select coalesce((select has_function_privilege(p, 'EXECUTE') from to_regprocedure(%s) p where p is not null), false)
"""

FUNCTION_ARGUMENTS = "text, text, text, jsonb, jsonb"
"""Argument types of a conflict function: table, op, id, data, old."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column. `type_name` is its type in SQL, `base` the oid of the type below all domains, and `kind` the
    `typtype` of that. A `generated` column is one that Postgres alone may write; a `readable` one the upload role may
    select. Values of a `comparable` type have an `=` operator of their own."""

    name: str
    type_name: str
    base: int
    kind: str
    is_array: bool
    generated: bool
    readable: bool
    comparable: bool


@dataclass(frozen=True, slots=True)
class TableShape:
    """One table: its rule, its oid, the key columns that identify a row, and its columns by name, in the table's
    order."""

    rule: TableRule
    oid: int
    key: tuple[str, ...]
    columns: Mapping[str, TableColumn]


async def read_shapes(conn: psycopg.AsyncConnection, rules: Iterable[TableRule]) -> Mapping[TableRule, TableShape]:
    """Read the tables of these rules, as the current role sees them. Raises HW_6121 or HW_6122."""
    wanted = list(dict.fromkeys(rules))
    names = [[rule.schema for rule in wanted], [rule.name for rule in wanted]]
    (of_role,), tables = await _fetch_all(conn, (_ROLE, []), (_TABLES, names))
    role = _checked_role(*of_role)
    found = {wanted[row[0] - 1]: row[1:] for row in tables}
    oids = [row[0] for row in found.values()]
    of_columns, of_keys = await _fetch_all(conn, (_COLUMNS, [oids]), (_KEYS, [oids]))
    columns: dict[int, dict[str, TableColumn]] = {oid: {} for oid in oids}
    for oid, *column in of_columns:
        columns[oid][column[0]] = TableColumn(*column)
    keys: dict[int, list[tuple[bool, tuple[str, ...]]]] = {oid: [] for oid in oids}
    for oid, primary, key in of_keys:
        keys[oid].append((primary, tuple(key)))
    shapes = {}
    for rule in wanted:
        if rule not in found:
            raise _unfit(rule, "the table is not in the source", "correct upload.tables")
        oid, secured, owned, usage, rights = found[rule]
        _check_security(rule, secured=secured, owned=owned)
        _check_rights(rule, role, usage=usage, rights=rights)
        await _check_function(conn, rule)
        shapes[rule] = TableShape(rule, oid, _key(rule, keys[oid]), columns[oid])
    return shapes


def _unfit(rule: TableRule, what: str, fix: str) -> UploadBlockedError:
    return UploadBlockedError(what, rule.qualified_name, fix, code="HW_6122")


def _checked_role(name: str, unbound: bool) -> sql.Identifier:
    role = sql.Identifier(name)
    if unbound:
        raise HeadwaterError(
            "row-level security does not apply to the upload role",
            f"upload.role: {name}",
            f"run {sql_text('ALTER ROLE {} NOSUPERUSER NOBYPASSRLS', role)}, or use another role",
            code="HW_6121",
        )
    return role


def _check_security(rule: TableRule, *, secured: bool, owned: bool) -> None:
    if secured or not rule.row_security:
        return
    what = "it does not apply to the upload role, which owns the table" if owned else "the table has none"
    how = sql_text(f"ALTER TABLE {{}} {'FORCE' if owned else 'ENABLE'} ROW LEVEL SECURITY", _name(rule))
    fix = f"run {how}, and create policies; or set row_security: false for the table, to let every user write every row"
    raise _unfit(rule, f"uploads need row-level security, and {what}", fix)


def _check_rights(rule: TableRule, role: sql.Identifier, *, usage: bool, rights: Sequence[str]) -> None:
    lacking = [right for right in needed_rights(rule) if right not in rights]
    if usage and not lacking:
        return
    grant = (
        sql_text(f"GRANT {', '.join(lacking)} ON {{}} TO {{}}", _name(rule), role)
        if usage
        else sql_text("GRANT USAGE ON SCHEMA {} TO {}", sql.Identifier(rule.schema), role)
    )
    fix = f"run {grant}, or `headwater source prepare --upload`"
    raise _unfit(rule, "the upload role lacks rights to the table", fix)


async def _check_function(conn: psycopg.AsyncConnection, rule: TableRule) -> None:
    if rule.function is None:
        return
    signature = sql_text(f"{{}}({FUNCTION_ARGUMENTS})", sql.Identifier(*rule.function))
    (((there,),),) = await _fetch_all(conn, (_FUNCTION, [signature]))
    if not there:
        what = "the table's conflict function is missing, or the upload role may not call it"
        raise _unfit(rule, what, f"create {signature} returning jsonb")


def needed_rights(rule: TableRule) -> tuple[str, ...]:
    """The rights that the upload role needs. Always SELECT too: rows are found by their key, and compared."""
    return ("SELECT", *(each.value.upper() for each in Operation if each in rule.operations))


def _name(rule: TableRule) -> sql.Identifier:
    return sql.Identifier(rule.schema, rule.name)


def sql_text(template: str, *parts: sql.Identifier) -> str:
    """SQL for people to copy."""
    return sql.SQL(template).format(*parts).as_string()


def _key(rule: TableRule, unique: list[tuple[bool, tuple[str, ...]]]) -> tuple[str, ...]:
    if rule.key is None:
        primary = next((key for is_primary, key in unique if is_primary), None)
        if primary is None:
            raise _unfit(rule, "the table has no primary key", "add one, or name a unique key as `key`")
        return primary
    if not any(set(key) == set(rule.key) for _, key in unique):
        raise _unfit(rule, "the table's `key` has no unique index", f"create a unique index on {', '.join(rule.key)}")
    return rule.key


def check_function(rule: TableRule) -> tuple[str, str]:
    """Schema and name of the rule's conflict function. A rule without one is a bug in the config reader."""
    assert rule.conflict is Conflict.FUNCTION
    assert rule.function is not None
    return rule.function


async def _fetch_all(conn: psycopg.AsyncConnection, *queries: tuple[str, Sequence[object]]) -> list[list[TupleRow]]:
    """The rows of these queries, in one round trip."""
    async with conn.pipeline():
        cursors = [await conn.execute(query.encode(), parameters) for query, parameters in queries]
    return [await cursor.fetchall() for cursor in cursors]
