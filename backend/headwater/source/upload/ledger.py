"""What was taken of each device: written in the same transaction as the rows, so that each op is applied once.

A device's row is locked for as long as one of its transactions is worked on: two of them never overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from headwater.source.upload.entries import DIGEST_BYTES, ClientTransaction, Device, Entry
from headwater.source.upload.errors import NotPrepared, OpIdReused, OpIdTooOld, Reason, Refused, TooManyLetters
from headwater.source.upload.settings import UploadSettings

PRUNE_EVERY = 256
"""Ops of a device between two looks at what of it can be forgotten."""

PREPARE = "run `headwater source prepare --upload`"

_CLIENT = """
insert into headwater_upload.clients (device, sub, client_id) values (%s, %s, %s)
on conflict (device) do update set seen_at = now() returning client, highest_op, pruned_to
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

_PRUNE = """
with gone as (
  delete from headwater_upload.taken
  where client = %(client)s and last_op <= %(below)s and taken_at < now() - make_interval(days => %(days)s)
  returning last_op)
update headwater_upload.clients set pruned_to = (select max(last_op) from gone)
where client = %(client)s and pruned_to < (select max(last_op) from gone)
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

_WAITING = """
select count(*) from (
  select from headwater_upload.clients c join headwater_upload.dead_letters d using (client)
  where left(c.sub, 200) = left(%s, 200) and c.sub = %s and d.state = 'parked' limit %s) w
"""

_LETTER = """
select id, state from headwater_upload.dead_letters where client = %s and first_op = %s and digest = %s
"""


@dataclass(frozen=True, slots=True)
class Client:
    """A device's row: what is known of its ops. Up to `pruned_to` only what is listed was surely taken."""

    number: int
    highest_op: int
    pruned_to: int


@dataclass(frozen=True, slots=True)
class Known:
    """Which entries of a transaction are new, and the dead letter that the others wait in, if they do."""

    new: tuple[Entry, ...]
    letter: int | None = None


@dataclass(frozen=True, slots=True)
class _Op:
    """One op that was taken; `letter` is where it waits, None when it was applied or given up."""

    digest: bytes
    letter: int | None


@contextmanager
def prepared() -> Iterator[None]:
    """What our own tables refuse is for the operator to mend."""
    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedColumn):
        raise NotPrepared("the tables that uploads are noted in are missing", "headwater_upload", PREPARE) from None
    except psycopg.errors.InsufficientPrivilege:
        what = "the login may not use the tables that uploads are noted in"
        raise NotPrepared(what, "headwater_upload", PREPARE) from None


async def open_client(conn: psycopg.AsyncConnection, device: Device) -> Client:
    """Lock the device's row, which is made if need be. Raises NotPrepared."""
    with prepared():
        row = await (await conn.execute(_CLIENT, [device.key, device.sub, device.client_id])).fetchone()
    assert row is not None
    return Client(*row)


async def known(conn: psycopg.AsyncConnection, client: Client, transaction: ClientTransaction) -> Known:
    """What of the transaction was taken before. Raises OpIdReused or OpIdTooOld."""
    taken = await _taken(conn, client, transaction)
    for entry in transaction.entries:
        if entry.op_id in taken and taken[entry.op_id].digest != entry.digest:
            raise OpIdReused("the device used this op id before, for another change", op_id=entry.op_id)
    new = tuple(entry for entry in transaction.entries if entry.op_id not in taken)
    for entry in new:
        if entry.op_id <= client.pruned_to:
            what = "the op id is from before what is remembered of this device"
            raise OpIdTooOld(what, op_id=entry.op_id)
    return Known(new, max((op.letter for op in taken.values() if op.letter is not None), default=None))


async def note(
    conn: psycopg.AsyncConnection,
    settings: UploadSettings,
    client: Client,
    entries: Sequence[Entry],
    letter: int | None = None,
) -> None:
    """Keep that these were taken, and forget what is old enough."""
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


async def park(
    conn: psycopg.AsyncConnection,
    settings: UploadSettings,
    device: Device,
    transaction: ClientTransaction,
    refusal: Refused,
) -> int | None:
    """Put the whole transaction aside, once. Returns its dead letter; None where nothing of it waits any more."""
    client = await open_client(conn, device)
    taken = await _taken(conn, client, transaction)
    if all(entry.op_id in taken and taken[entry.op_id].digest == entry.digest for entry in transaction.entries):
        return (await known(conn, client, transaction)).letter  # another request was faster
    identity = [client.number, transaction.first_op, transaction.digest]
    reason = refusal.reason
    why = [reason.code, reason.sqlstate, reason.message, reason.op_id]
    with prepared():
        await _check_room(conn, settings, device)
        parked = await conn.execute(_PARK, [*identity, transaction.last_op, *why, transaction.text, device.claims])
        made = await parked.fetchone()
        if made is None:
            row = await (await conn.execute(_LETTER, identity)).fetchone()
            return None if row is None or row[1] != "parked" else int(row[0])
    new = [each for each in transaction.entries if each.op_id not in taken and each.op_id > client.pruned_to]
    if new:
        await note(conn, settings, client, new, made[0])
    return int(made[0])


async def reason_of(conn: psycopg.AsyncConnection, letter: int) -> Reason | None:
    """Why a dead letter is one, if it still is."""
    with prepared():
        row = await (await conn.execute(_REASON, [letter])).fetchone()
    return None if row is None else Reason(*row)


async def _check_room(conn: psycopg.AsyncConnection, settings: UploadSettings, device: Device) -> None:
    """What nobody may write anywhere else must not fill the database as dead letters."""
    row = await (await conn.execute(_WAITING, [device.sub, device.sub, settings.max_parked_per_user])).fetchone()
    if row is not None and row[0] >= settings.max_parked_per_user:
        raise TooManyLetters(
            f"{row[0]} dead letters of one user wait",
            "upload.max_parked_per_user",
            "see `headwater upload list`, and retry or discard them",
        )


async def not_applied(
    conn: psycopg.AsyncConnection, client: Client, transaction: ClientTransaction
) -> tuple[Entry, ...]:
    """The entries of a transaction, once parked, that were not applied with another one."""
    taken = await _taken(conn, client, transaction)
    done = {op for op, state in taken.items() if state.letter is None}
    return tuple(
        each for each in transaction.entries if each.op_id not in done or taken[each.op_id].digest != each.digest
    )


async def _taken(conn: psycopg.AsyncConnection, client: Client, transaction: ClientTransaction) -> dict[int, _Op]:
    """Those of the transaction's op ids that were taken."""
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
