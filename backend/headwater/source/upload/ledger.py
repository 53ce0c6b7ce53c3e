"""Records which ops of each device were applied or parked, in the same transaction as the rows: each is applied once.

A device's row in `clients` is locked while one of its transactions runs, so that two of them never overlap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from headwater.errors import HeadwaterError
from headwater.source.connect import connect, source_errors
from headwater.source.readiness.finding import Finding
from headwater.source.upload.entries import DIGEST_BYTES, ClientTransaction, Device, Entry
from headwater.source.upload.errors import Held, Reason, UploadBlockedError, UploadRefusedError, WriteFailedError
from headwater.source.upload.settings import UploadSettings

PRUNE_EVERY = 256
"""After this many ops of a device, its old records are deleted."""

PREPARE = "run `headwater source prepare --upload`"

_CLIENT = """
insert into headwater_upload.clients (device, sub, client_id) values (%s, %s, %s)
on conflict (device) do update set seen_at = now() returning xmax = 0, client, highest_op, pruned_to
"""

_OF_USER = "left(c.sub, 200) = left(%(sub)s, 200) and c.sub = %(sub)s"

_DEVICES = f"select count(*) from (select from headwater_upload.clients c where {_OF_USER} limit %(most)s + 1) d"

# What is known of a device that sent nothing for so long is of use only if its last answer was lost
_DROP_SILENT = f"""
delete from headwater_upload.clients where client in (
  select client from headwater_upload.clients c
  where {_OF_USER} and seen_at < now() - make_interval(days => %(days)s)
    and not exists (select from headwater_upload.dead_letters d where d.client = c.client and d.state = 'parked')
  order by seen_at limit 100 for update skip locked)
"""

_KNOWN = """
select ops, digests, letter from headwater_upload.taken where client = %s and last_op >= %s and first_op <= %s
"""

_NOTE = """
with noted as (
  insert into headwater_upload.taken (client, first_op, last_op, ops, digests, letter)
  values (%(client)s, %(first)s, %(last)s, %(ops)s, %(digests)s, %(letter)s))
update headwater_upload.clients set highest_op = greatest(highest_op, %(last)s) where client = %(client)s
"""

# When a letter is retried, its ops that were applied with another transaction are left out
_NOT_OF_A_LETTER = """
not exists (select from headwater_upload.dead_letters d where d.client = t.client and d.state = 'parked'
            and d.first_op <= t.last_op and d.last_op >= t.first_op)
"""

_PRUNE = f"""
with gone as (
  delete from headwater_upload.taken t
  where client = %(client)s and last_op <= %(below)s and taken_at < now() - make_interval(days => %(days)s)
  and {_NOT_OF_A_LETTER} returning last_op)
update headwater_upload.clients set pruned_to = (select max(last_op) from gone)
where client = %(client)s and pruned_to < (select max(last_op) from gone)
"""

_FORGET = f"""
with silent as (
  select client from headwater_upload.clients
  where seen_at < now() - make_interval(days => %s) and pruned_to < highest_op
  limit %s for update skip locked),
gone as (delete from headwater_upload.taken t using silent where t.client = silent.client and {_NOT_OF_A_LETTER})
update headwater_upload.clients c set pruned_to = highest_op from silent where c.client = silent.client
"""

_FORGET_SETTLED = """
delete from headwater_upload.dead_letters where id in (
  select id from headwater_upload.dead_letters
  where state <> 'parked' and settled_at < now() - make_interval(days => %s) limit %s)
"""

_PARK = """
insert into headwater_upload.dead_letters
  (client, first_op, digest, last_op, code, sqlstate, message, op_id, payload, claims)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
on conflict (client, first_op, digest) do nothing returning id
"""

_REASON = """
select code, sqlstate, message, op_id from headwater_upload.dead_letters where id = %s and state = 'parked'
"""

# Sizes are those on disk: to learn them, Postgres reads none of the contents
_WAITING = f"""
select count(*), coalesce(sum(w.size), 0)::bigint from (
  select pg_column_size(d.payload) + pg_column_size(d.claims) as size
  from headwater_upload.clients c join headwater_upload.dead_letters d using (client)
  where {_OF_USER} and d.state = 'parked' limit %(most)s) w
"""

_LETTER = """
select id, state from headwater_upload.dead_letters where client = %s and first_op = %s and digest = %s
"""


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A device's row in `clients`. Records of op ids up to `pruned_to` may have been deleted, so the lack of a record
    there does not mean that the op was never applied."""

    number: int
    highest_op: int
    pruned_to: int


@dataclass(frozen=True, slots=True)
class Known:
    """The new entries of a transaction. `letter` is the dead letter that holds the others, if they are parked."""

    new: tuple[Entry, ...]
    letter: int | None = None


@dataclass(frozen=True, slots=True)
class _Op:
    """A recorded op. `letter` is the dead letter that holds it; None when it was applied or discarded."""

    digest: bytes
    letter: int | None


@contextmanager
def prepared() -> Iterator[None]:
    """Turn a missing table, or a missing right to one, into HW_6120: an operator has to fix it."""
    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedColumn):
        raise HeadwaterError(
            "the tables that record uploads are missing", "headwater_upload", PREPARE, code="HW_6120"
        ) from None
    except psycopg.errors.InsufficientPrivilege:
        what = "the login may not use the tables that record uploads"
        raise HeadwaterError(what, "headwater_upload", PREPARE, code="HW_6120") from None


async def open_client(conn: psycopg.AsyncConnection, settings: UploadSettings, device: Device) -> DeviceRecord:
    """Lock the device's row until the transaction ends, inserting it if it is missing. Raises HW_6120, or
    HW_6125."""
    with prepared():
        row = await (await conn.execute(_CLIENT, [device.key, device.sub, device.client_id])).fetchone()
        assert row is not None
        made, *client = row
        if made:
            await _check_devices(conn, settings, device)
    return DeviceRecord(*client)


async def _check_devices(conn: psycopg.AsyncConnection, settings: UploadSettings, device: Device) -> None:
    """Beyond the limit, forget those devices of the user that have sent nothing for longest. Raises HW_6125 when
    all of them have sent something lately."""
    most = settings.max_devices_per_user
    row = await (await conn.execute(_DEVICES, {"sub": device.sub, "most": most})).fetchone()
    if row is None or row[0] <= most:
        return
    if not (await conn.execute(_DROP_SILENT, {"sub": device.sub, "days": settings.keep_days})).rowcount:
        raise HeadwaterError(
            f"{most} devices of one user have sent something in the last {settings.keep_days} days",
            "upload.max_devices_per_user",
            "raise it, or give each person a `sub` of their own",
            code="HW_6125",
        )


async def known(conn: psycopg.AsyncConnection, client: DeviceRecord, transaction: ClientTransaction) -> Known:
    """Find out which entries were recorded before. Raises HW_6115 or HW_6116."""
    taken = await _taken(conn, client, transaction)
    for entry in transaction.entries:
        if entry.op_id in taken and taken[entry.op_id].digest != entry.digest:
            raise UploadRefusedError(
                "the device used this op id before, for another change", op_id=entry.op_id, code="HW_6115"
            )
    new = tuple(entry for entry in transaction.entries if entry.op_id not in taken)
    for entry in new:
        if entry.op_id <= client.pruned_to:
            what = "the op id is older than what is remembered of this device"
            raise UploadRefusedError(what, op_id=entry.op_id, code="HW_6116")
    return Known(new, max((op.letter for op in taken.values() if op.letter is not None), default=None))


async def note(
    conn: psycopg.AsyncConnection,
    settings: UploadSettings,
    client: DeviceRecord,
    entries: Sequence[Entry],
    letter: int | None = None,
) -> None:
    """Record these entries as applied, or as parked in dead letter `letter`. Now and then this also deletes records
    that are outside `window` and older than `keep_days`."""
    ops = [entry.op_id for entry in entries]
    digests = b"".join([entry.digest for entry in entries])
    parameters = {
        "client": client.number, "first": ops[0], "last": ops[-1], "ops": ops, "digests": digests, "letter": letter,
    }  # fmt: skip
    with prepared():
        await conn.execute(_NOTE, parameters)
        if ops[-1] // PRUNE_EVERY > client.highest_op // PRUNE_EVERY:
            below = ops[-1] - settings.window
            await conn.execute(_PRUNE, {"client": client.number, "below": below, "days": settings.keep_days})


async def forget_silent(conn: psycopg.AsyncConnection, settings: UploadSettings, limit: int) -> int:
    """Delete what is remembered of devices that have sent nothing for `forget_days`, and dead letters that were settled
    so long ago, `limit` of either at most. Returns of how many. Each device's last op id stays, so that nothing of it
    can be applied twice."""
    with prepared():
        silent = (await conn.execute(_FORGET, [settings.forget_days, limit])).rowcount
        return max(silent, (await conn.execute(_FORGET_SETTLED, [settings.forget_days, limit])).rowcount)


async def park(
    conn: psycopg.AsyncConnection,
    settings: UploadSettings,
    device: Device,
    transaction: ClientTransaction,
    refusal: UploadRefusedError,
) -> int | None:
    """Park the whole transaction, once. Returns its dead letter; None when it was applied or discarded meanwhile."""
    client = await open_client(conn, settings, device)
    taken = await _taken(conn, client, transaction)
    if all(entry.op_id in taken and taken[entry.op_id].digest == entry.digest for entry in transaction.entries):
        return (await known(conn, client, transaction)).letter  # another request was faster
    identity = [client.number, transaction.first_op, transaction.digest]
    kept = [*identity, transaction.last_op, *refusal.reason, transaction.text, device.claims]
    with prepared():
        await _check_room(conn, settings, device)
        made = await (await conn.execute(_PARK, kept)).fetchone()
        if made is None:
            row = await (await conn.execute(_LETTER, identity)).fetchone()
            return None if row is None or row[1] != "parked" else int(row[0])
    new = [each for each in transaction.entries if each.op_id not in taken and each.op_id > client.pruned_to]
    if new:
        await note(conn, settings, client, new, made[0])
    return int(made[0])


async def reason_of(conn: psycopg.AsyncConnection, letter: int) -> Reason | None:
    """Why a dead letter was parked; None when it was retried or discarded since."""
    with prepared():
        row = await (await conn.execute(_REASON, [letter])).fetchone()
    return None if row is None else Reason(*row)


async def _check_room(conn: psycopg.AsyncConnection, settings: UploadSettings, device: Device) -> None:
    """Raise HW_6124 at the user's limit: a user whose writes are all refused must not fill the database with
    dead letters."""
    most, most_bytes = settings.max_parked_per_user, settings.max_parked_bytes_per_user
    row = await (await conn.execute(_WAITING, {"sub": device.sub, "most": most})).fetchone()
    count, size = row or (0, 0)
    if count < most and size < most_bytes:
        return
    what, limit = f"{count} dead letters of one user wait", "max_parked_per_user"
    if count < most:
        what, limit = f"{what}, with {size:,} bytes", "max_parked_mb_per_user"
    raise HeadwaterError(
        what, f"upload.{limit}", "see `headwater upload list`, and retry or discard them", code="HW_6124"
    )


async def not_applied(
    conn: psycopg.AsyncConnection, client: DeviceRecord, transaction: ClientTransaction
) -> tuple[Entry, ...]:
    """The entries of a parked transaction, without those that were applied as part of another transaction."""
    taken = await _taken(conn, client, transaction)
    done = {op for op, state in taken.items() if state.letter is None}
    return tuple(
        each for each in transaction.entries if each.op_id not in done or taken[each.op_id].digest != each.digest
    )


async def _taken(conn: psycopg.AsyncConnection, client: DeviceRecord, transaction: ClientTransaction) -> dict[int, _Op]:
    """The transaction's op ids that are recorded, with their records."""
    with prepared():
        found = await conn.execute(_KNOWN, [client.number, transaction.first_op, transaction.last_op])
        rows = await found.fetchall()
    asked = {entry.op_id for entry in transaction.entries}
    return {
        op: _Op(digests[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES], letter)
        for ops, digests, letter in rows
        for place, op in enumerate(ops)
        if op in asked
    }


_HOLD = """
insert into headwater_upload.waiting as w (client, last_op, digest, code, place, what, fix, app_version)
values (%s, %s, %s, %s, %s, %s, %s, %s)
on conflict (client) do update set
  tries = case when (w.digest, w.code) = (excluded.digest, excluded.code) then w.tries + 1 else 1 end,
  since = case when w.digest = excluded.digest then w.since else now() end,
  last_op = excluded.last_op, digest = excluded.digest, code = excluded.code, place = excluded.place,
  what = excluded.what, fix = excluded.fix, app_version = excluded.app_version, tried_at = now()
returning tries, (extract(epoch from now() - since) / 3600)::float8
"""

# An operator is told of what devices still send. A user may have many of them and choose what they lack, so what many
# users wait for comes first, and of each table something
_CAUSES = """
select code, place, what, fix, devices, since, tried, versions from (
  select w.code, w.place, w.what, w.fix, count(*) as devices, count(distinct c.sub) as users,
         to_char(min(w.since) at time zone 'UTC', 'YYYY-MM-DD HH24:MI') as since,
         to_char(max(w.tried_at) at time zone 'UTC', 'YYYY-MM-DD HH24:MI') as tried,
         (array_agg(distinct w.app_version) filter (where w.app_version <> ''))[:5] as versions,
         row_number() over (partition by w.code, w.place order by count(distinct c.sub) desc, min(w.since)) as number
  from headwater_upload.waiting w join headwater_upload.clients c using (client)
  where w.last_op > c.highest_op and w.tried_at > now() - interval '1 day'
  group by w.code, w.place, w.what, w.fix) causes
where number <= 5 order by number, users desc limit 50
"""

# Which of these names the role may not use: Postgres names one in the message, in the language of the server, and
# without its schema
_LACKING = """
select format('GRANT %%s ON %%s TO %%I', g.rights, g.thing, g.role) from (
  select pg_table_is_visible(c.oid) as near, case c.relkind when 'S' then 'USAGE' else a.verb end as rights, a.role,
         case c.relkind when 'S' then 'SEQUENCE ' else '' end || format('%%I.%%I', n.nspname, c.relname) as thing
  from asked a join pg_class c on c.relname = any(a.names) and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
    join pg_namespace n on n.oid = c.relnamespace and n.nspname not in ('pg_catalog', 'information_schema')
  where not case c.relkind when 'S' then has_sequence_privilege(a.role, c.oid, 'USAGE')
                           else has_table_privilege(a.role, c.oid, a.verb) end
  union all
  select true, 'USAGE', a.role, format('SCHEMA %%I', n.nspname) from asked a
    join pg_namespace n on n.nspname = any(a.names)
  where not has_schema_privilege(a.role, n.oid, 'USAGE')
  union all
  select pg_function_is_visible(p.oid), 'EXECUTE', a.role, format('FUNCTION %%s', p.oid::regprocedure)
  from asked a join pg_proc p on p.proname = any(a.names)
  where not has_function_privilege(a.role, p.oid, 'EXECUTE')) g order by g.near desc limit 1
"""
_ASKED = "with asked (role, verb, names) as (values (%s::text, %s::text, %s::text[]))"


async def hold(
    conn: psycopg.AsyncConnection,
    settings: UploadSettings,
    client: DeviceRecord,
    device: Device,
    transaction: ClientTransaction,
    cause: UploadBlockedError,
) -> Held:
    """Record that the device's transaction waits for this, and return for how long it has. Gives the cause the
    statement that mends it, where it is a missing grant."""
    if isinstance(cause, WriteFailedError) and cause.sqlstate == "42501" and cause.verb:
        asked = [settings.role, cause.verb, _named(cause.what)]
        grant = await (await conn.execute(_ASKED + _LACKING, asked)).fetchone()
        cause.fix = cause.fix if grant is None else f"run {grant[0]}"
    told = [cause.code, cause.where, cause.what, cause.fix, device.app_version]
    with prepared():
        found = await conn.execute(_HOLD, [client.number, transaction.last_op, transaction.digest, *told])
        row = await found.fetchone()
    assert row is not None
    return Held(*row)


def _named(what: str) -> list[str]:
    """The words of a message that may name what the role may not use: in English the last ones, since the others may
    be names of tables too."""
    if _DENIED not in what:
        return re.findall(r"[^\s\"'«»„“”‘’、「」]+", what)
    named = re.search(rf"{_DENIED} (?:\w+ )?{_KINDS} (.+)", what)
    return [named[1]] if named else []


_DENIED = "permission denied for"
_KINDS = "(?:table|view|sequence|schema|function|procedure)"


def waiting(settings: UploadSettings) -> list[Finding]:
    """What uploads wait for, and somebody has to mend: one finding for each cause. Raises SourceUnreachableError or
    SourceRefusedError."""
    with connect(settings.login) as conn, source_errors(settings.login), prepared():
        is_there = conn.execute("select to_regclass('headwater_upload.waiting') is not null").fetchone()
        rows = conn.execute(_CAUSES).fetchall() if is_there == (True,) else []
    return [_finding(*row) for row in rows]


def _finding(
    code: str, place: str, what: str, fix: str, devices: int, since: str, tried: str, versions: list[str] | None
) -> Finding:
    where = f" ({place})" if place else ""
    who = f"{devices:,} device{'' if devices == 1 else 's'}"
    of_app = f", app version {', '.join(versions)}" if versions else ""
    told = f"{what}{where}: uploads of {who} wait since {since} UTC{of_app}; last tried {tried} UTC"
    return Finding(code, told, fix, fatal=False)
