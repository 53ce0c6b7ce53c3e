"""Does writes under the rules of their tables: checks that they are allowed, resolves conflicts, and finds out why no
row was changed.

Writes are sent many at a time, since a round trip may take longer than a write. If one of them changed no row, that may
be fine, or be a refusal. So the batch is undone and done again, this time looking at each row before it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import psycopg
from psycopg.rows import TupleRow

from headwater.failpoints import failpoint
from headwater.source.upload import statements
from headwater.source.upload.entries import Write, WriteKind, read_json, write_json
from headwater.source.upload.errors import (
    MUST_NOT_BE_NULL,
    NOT_ALLOWED,
    UNREADABLE,
    Mender,
    UploadBlockedError,
    UploadRefusedError,
    WriteFailedError,
    failed_in_policy,
    mender_of,
    refused_by_postgres,
    refused_for_values,
)
from headwater.source.upload.settings import Conflict, Operation, TableRule
from headwater.source.upload.shape import TableShape, check_function
from headwater.source.upload.statements import SqlStatement, Values

BATCH = 500
"""How many writes are sent at a time."""

_BEGIN = "savepoint batch"
_UNDO = "rollback to savepoint batch"
_END = "set constraints all immediate"
"""Runs what is deferred until the commit, to which no time limit of a statement applies."""

_NEEDED = {
    WriteKind.PUT: Operation.INSERT,
    WriteKind.PATCH: Operation.UPDATE,
    WriteKind.DELETE: Operation.DELETE,
}

# What the policies demand of a row that is to be changed: one of the permissive ones, and all restrictive ones. Nothing
# where there are none, or where a rule does something else in place of the command.
_PERMISSION = """
select case when row_security_active(c.oid) and not exists (
         select from pg_rewrite r where r.ev_class = c.oid and r.is_instead and r.ev_type::text = %(event)s)
       then concat_ws(' and ',
         '(' || coalesce(string_agg('(' || pg_get_expr(p.polqual, c.oid) || ')', ' or ') filter (where p.polpermissive),
                         'false') || ')',
         string_agg('(' || pg_get_expr(p.polqual, c.oid) || ')', ' and ') filter (where not p.polpermissive))
       else 'true' end
from pg_class c left join pg_policy p on p.polrelid = c.oid and p.polcmd::text in ('*', %(command)s)
  and (p.polroles = '{0}' or exists (select from unnest(p.polroles) as r where pg_has_role(r, 'USAGE')))
where c.oid = %(table)s group by c.oid
"""

_COMPUTED = """
select pg_get_expr(conbin, conrelid) from pg_constraint where conrelid = %(table)s and contype = 'c'
union all
select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d
  join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum and a.attgenerated <> ''
where d.adrelid = %(table)s
union all
select e from pg_index, unnest(array[pg_get_expr(indexprs, indrelid), pg_get_expr(indpred, indrelid)]) e
where indrelid = %(table)s and e is not null
"""

_IS_TRIGGER = """
select exists (select from pg_proc p where p.prorettype = 'trigger'::regtype and p.oid::regprocedure::text = any(%s))
"""

_Permissions = Mapping[tuple[int, WriteKind], str]
"""By the oid of a table and the kind of a write."""


@dataclass(slots=True)
class _Sent:
    """A write that was sent: its table, what it writes and compares, and its statements in order. `same_key` and `look`
    are those that ask; `changes` those that write."""

    shape: TableShape
    write: Write
    values: Values = field(default_factory=dict)
    old: Values | None = None
    cursors: list[psycopg.AsyncCursor[TupleRow]] = field(default_factory=list)
    same_key: psycopg.AsyncCursor[TupleRow] | None = None
    look: psycopg.AsyncCursor[TupleRow] | None = None
    changes: list[psycopg.AsyncCursor[TupleRow]] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether a statement has no result."""
        return any(cursor.statusmessage is None for cursor in self.cursors)

    async def run(self, conn: psycopg.AsyncConnection, statement: SqlStatement) -> psycopg.AsyncCursor[TupleRow]:
        cursor = conn.cursor()
        self.cursors.append(cursor)
        return await cursor.execute(statement.query, statement.parameters)


class _ZeroRowsError(Exception):
    """A write changed no row, and it is not known why."""


def rule_for(tables: Mapping[str, TableRule], write: Write) -> TableRule:
    """The rule of the write's table. Raises HW_6110 when the table or the operation is not allowed."""
    rule = tables.get(write.table)
    if rule is None:
        raise UploadRefusedError("upload.tables does not have the table", statements.shown(write.table), code="HW_6110")
    if _NEEDED[write.kind] not in rule.operations:
        raise UploadRefusedError(
            f"upload.tables does not allow {write.kind.value}", rule.qualified_name, code="HW_6110"
        )
    return rule


@contextmanager
def naming(op_id: int) -> Iterator[None]:
    """Add the op id to refusals."""
    try:
        yield
    except UploadRefusedError as refusal:
        refusal.op_id = op_id
        raise


async def apply_writes(conn: psycopg.AsyncConnection, writes: Sequence[tuple[TableShape, Write]]) -> None:
    """Do the writes in order, except those that a conflict policy leaves out. Raises UploadRefusedError with the op id
    of what failed, or psycopg.Error for what passes."""
    for start in range(0, len(writes), BATCH):
        batch = writes[start : start + BATCH]
        end = _END if start + BATCH >= len(writes) else ""
        try:
            await _attempt(conn, batch, None, end)
        except _ZeroRowsError:
            await conn.execute(_UNDO)
            changes = {(shape.oid, write.kind) for shape, write in batch}
            await _attempt(conn, batch, await _permissions(conn, changes), end)


async def _attempt(
    conn: psycopg.AsyncConnection,
    batch: Sequence[tuple[TableShape, Write]],
    permissions: _Permissions | None,
    end: str = "",
) -> None:
    """Do the batch, and the statement `end` after it. Without `permissions`, raises _ZeroRowsError where a row has to
    be looked at: it has to be undone then."""
    sent: list[_Sent] = []
    try:
        async with conn.pipeline() as pipeline:
            await conn.execute(_BEGIN)
            for shape, write in batch:
                each = _Sent(shape, write)
                sent.append(each)
                try:
                    with naming(write.op_id):
                        await _send(conn, each, permissions)
                except UploadRefusedError:
                    await pipeline.sync()  # an earlier write that failed is the reason
                    raise
                failpoint("upload.after_write")
            if end:
                await conn.execute(end.encode())
    except psycopg.Error as error:
        failed = next((each for each in sent if each.failed), None)
        if failed is None or mender_of(error) is Mender.NOBODY:
            raise
        raise await _refusal(conn, failed, error) from None
    for each in sent:
        with naming(each.write.op_id):
            await _judge(each)


async def _refusal(conn: psycopg.AsyncConnection, failed: _Sent, error: psycopg.Error) -> UploadRefusedError:
    """The refusal of a write that failed. Looks whether its values fail in the same way by themselves: if so, it is for
    the user, and else something that the write met, such as a policy."""
    shape, values = failed.shape, failed.values
    table, nulls = shape.rule.qualified_name, {name for name, value in values.items() if value is None}
    refusal, op_id = refused_by_postgres(error, table, nulls, failed.write.op_id), failed.write.op_id
    if error.sqlstate == NOT_ALLOWED or not (error.sqlstate in UNREADABLE or isinstance(refusal, WriteFailedError)):
        return refusal
    await conn.execute(_UNDO)
    is_policys = error.sqlstate in UNREADABLE and not (_in_function(failed) or await _is_of_trigger(conn, error))
    # the other columns are null here, which not every type takes
    computed = [] if error.sqlstate == MUST_NOT_BE_NULL else await _computed(conn, shape)
    fit = statements.fit(shape, failed.write.row_id, values, failed.old or {}, computed)
    try:
        await conn.execute(fit.query, fit.parameters)
    except psycopg.Error as of_values:
        if of_values.sqlstate == error.sqlstate:
            return refused_for_values(error, op_id)
        if mender_of(of_values) is Mender.NOBODY:
            raise
        return refusal
    return failed_in_policy(error, table, op_id) if is_policys else refusal


def _in_function(failed: _Sent) -> bool:
    """Whether a write failed before any of it was sent, in its conflict function."""
    return failed.shape.rule.conflict is Conflict.FUNCTION and not failed.changes


async def _is_of_trigger(conn: psycopg.AsyncConnection, error: psycopg.Error) -> bool:
    """Whether a trigger function failed, as one does that reads a value of the row in its own way."""
    called = re.findall(r"((?:[\w.]|\"[^\"]+\")+\(\))", error.diag.context or "")
    row = await (await conn.execute(_IS_TRIGGER, [called])).fetchone()
    return row == (True,)


async def _computed(conn: psycopg.AsyncConnection, shape: TableShape) -> list[str]:
    """The expressions that Postgres computes for a row of the table, besides those of policies and defaults."""
    rows = await (await conn.execute(_COMPUTED, {"table": shape.oid})).fetchall()
    return [str(expression) for (expression,) in rows]


async def _permissions(conn: psycopg.AsyncConnection, changes: Iterable[tuple[int, WriteKind]]) -> _Permissions:
    found = {}
    for table, kind in changes:
        command, event = ("d", "4") if kind is WriteKind.DELETE else ("w", "2")
        asked = await conn.execute(_PERMISSION, {"table": table, "command": command, "event": event})
        row = await asked.fetchone()
        found[table, kind] = "true" if row is None else str(row[0])
    return found


async def _send(conn: psycopg.AsyncConnection, sent: _Sent, permissions: _Permissions | None) -> None:
    """Send the statements of a write, which ends before their results are there."""
    shape, write = sent.shape, sent.write
    rule = shape.rule
    data = statements.known_columns(shape, write.data, to_write=True)
    if write.kind is WriteKind.PUT:
        data = {**dict.fromkeys(rule.null_when_absent), **data}
    sent.values = data
    if write.old is not None and rule.conflict is Conflict.REJECT_CHANGED:
        sent.old = statements.known_columns(shape, write.old, to_write=False)
    values: Values
    values, same_key = statements.without_key(shape, write.row_id, data)
    if same_key is not None:
        sent.same_key = await sent.run(conn, same_key)
    if rule.conflict is Conflict.FUNCTION:
        decided = await _decided(conn, sent, data)
        if decided is None:
            return
        sent.values = values = decided
    if rule.conflict is Conflict.REJECT_CHANGED and sent.old is None and write.kind is not WriteKind.PUT:
        raise UploadBlockedError(
            "the app sends no previous values to compare", rule.qualified_name, _TRACK, code="HW_6149"
        )
    if permissions is not None:
        if Operation.UPDATE in rule.operations:  # what is seen has to hold until the write, which may wait for others
            await sent.run(conn, statements.lock(shape, write.row_id))
        look = statements.look(shape, write.row_id, sent.old, permissions[shape.oid, write.kind])
        sent.look = await sent.run(conn, look)
    sent.changes = [await sent.run(conn, statement) for statement in _changes(shape, write, values, sent.old)]


_TRACK: Final = (
    "set trackPrevious (trackPreviousValues) for the table in the client's schema; what waits now is applied once its"
    " `conflict` in upload.tables is last_write_wins"
)


def _changes(shape: TableShape, write: Write, values: Values, old: Values | None) -> list[SqlStatement]:
    """The statements of a write. A PUT is an update where there is a row, and else a plain insert."""
    row_id, rule = write.row_id, shape.rule
    match write.kind:
        case WriteKind.PUT:
            is_new = rule.conflict is not Conflict.REJECT_CHANGED and Operation.UPDATE not in rule.operations
            insert = statements.insert(shape, row_id, values, if_absent=not is_new)
            return [statements.update(shape, row_id, values, None), insert] if _may_update(rule, values) else [insert]
        case WriteKind.PATCH:
            return [statements.update(shape, row_id, values, old)] if values else []
        case WriteKind.DELETE:
            return [statements.delete(shape, row_id, old)]


def _may_update(rule: TableRule, values: Values) -> bool:
    """Whether a PUT changes the row that it finds."""
    return bool(values) and rule.conflict is not Conflict.REJECT_CHANGED and Operation.UPDATE in rule.operations


async def _judge(sent: _Sent) -> None:
    """Raise the reason why a write was not done as it should: another key (HW_6110), or no row was changed,
    since it is gone (HW_6113), differs from `old` (HW_6112), or the user may not change it (HW_6114).
    What may be changed, and was not, a trigger or rule has dealt with in its own way."""
    rule, kind = sent.shape.rule, sent.write.kind
    where, is_strict = rule.qualified_name, rule.conflict is Conflict.REJECT_CHANGED
    if sent.same_key is not None and await sent.same_key.fetchone() != (True,):
        raise UploadRefusedError("the key of a row can't be changed", where, code="HW_6110")
    if not sent.changes or any(cursor.rowcount for cursor in sent.changes):
        return
    if rule.accept_zero_rows and not is_strict:
        return
    if sent.look is None:
        raise _ZeroRowsError
    row = await sent.look.fetchone()
    if row is None:
        if kind is WriteKind.PATCH and not rule.skip_gone:
            raise UploadRefusedError("the row is gone, or this user can't see it", where, code="HW_6113")
        return
    is_same, is_permitted = row
    if kind is WriteKind.PUT and is_strict:
        raise UploadRefusedError("a row with this id exists already", where, code="HW_6112")
    if kind is WriteKind.PUT and len(sent.changes) == 1:  # it was only to be inserted
        return
    if not is_same:
        raise UploadRefusedError("the row was changed since the device read it", where, code="HW_6112")
    if not is_permitted and not rule.accept_zero_rows:
        raise UploadRefusedError(f"row-level security prevented this {kind.value}", where, code="HW_6114")


async def _decided(conn: psycopg.AsyncConnection, sent: _Sent, data: Values) -> Values | None:
    """Call the table's conflict function. Returns the values to write, or None to write nothing."""
    shape, write = sent.shape, sent.write
    old = None if write.old is None else write_json(write.old)
    given = [write.table, write.kind.value, write.row_id, write_json(data), old]
    row = await (await sent.run(conn, statements.call(check_function(shape.rule), given))).fetchone()
    if row is None or row[0] is None:
        return None
    answer = read_json(row[0])
    if not isinstance(answer, Mapping):
        what = "the conflict function returned neither an object nor null"
        raise UploadBlockedError(what, shape.rule.qualified_name, "correct the function", code="HW_6122")
    return {name: value for name, value in answer.items() if name not in (*shape.key, "id")}
