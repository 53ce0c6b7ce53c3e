"""Dead letters: transactions of devices that could not be applied. An operator reads them, retries or discards them.
Transactions of the source that can't be applied are in `replication.stream.failed`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import psycopg

from headwater.errors import HeadwaterError
from headwater.source.upload import ledger
from headwater.source.upload.apply import write_all
from headwater.source.upload.entries import ClientTransaction, Device, Number, entry_of, read_json, transaction_of
from headwater.source.upload.errors import UploadRefusedError
from headwater.source.upload.routing import RoutedUploads
from headwater.source.upload.settings import UploadSettings

PAGE = 100
"""How many letters are listed at once."""

_WAITING = """
select d.id, c.sub, c.client_id, d.first_op, d.last_op, d.parked_at, d.attempts, d.code, d.sqlstate,
       d.message, d.op_id, pg_column_size(d.payload)
from headwater_upload.dead_letters d join headwater_upload.clients c using (client)
where d.state = 'parked' and d.id > %s order by d.id limit %s
"""

_PAYLOAD = "select payload::text from headwater_upload.dead_letters where id = %s and state = 'parked'"

_DEVICE = """
select c.sub, c.client_id, d.claims::text, d.payload::text
from headwater_upload.dead_letters d join headwater_upload.clients c using (client)
where d.id = %s and d.state = 'parked'
"""

# The row stays, so that the same transaction is not parked again when it is sent again; its contents are deleted
_SETTLE = """
update headwater_upload.dead_letters set state = %s, settled_at = now(), payload = null, claims = null
where id = %s and state = 'parked' returning client
"""

_RELEASE = "update headwater_upload.taken set letter = null where client = %s and letter = %s"

_FAILED = """
update headwater_upload.dead_letters set attempts = attempts + 1, code = %s, sqlstate = %s, message = %s, op_id = %s
where id = %s and state = 'parked'
"""


def unknown_letter(letter: int) -> HeadwaterError:
    """No dead letter with this number waits: it was retried or discarded, or never existed."""
    return HeadwaterError(f"no dead letter {letter} waits", fix="see `headwater upload list`", code="HW_6123")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A waiting dead letter, without its entries, of which `stored` is the size on disk. `message` may contain a value
    of a row."""

    id: int
    sub: str
    client_id: str
    first_op: int
    last_op: int
    parked_at: datetime
    attempts: int
    code: str
    sqlstate: str
    message: str = field(repr=False)
    op_id: int | None
    stored: int


class DeadLetters:
    """Those in one source's database. With several sources, the settings are those of all."""

    def __init__(self, settings: UploadSettings, routed: RoutedUploads, source: str) -> None:
        self._settings = settings.by_source()[source]
        self._uploads = routed.by_source[source]
        self._routed = routed

    async def waiting(self, after: int = 0, limit: int = PAGE) -> list[DeadLetter]:
        """The first waiting dead letters with a number beyond `after`, oldest first."""
        return await self._uploads.tried(lambda conn: self._waiting(conn, after, limit))

    async def one(self, letter: int) -> tuple[DeadLetter, str]:
        """A waiting dead letter, and its entries as JSON. Raises HW_6123."""
        return await self._uploads.tried(lambda conn: self._one(conn, letter))

    async def retry(self, letter: int) -> None:
        """Apply a dead letter now, as its user, with the claims of its token, in the sources that it is for by now.
        Raises HW_6123, UploadRefusedError when it still can't be applied, or what `Uploads.take` raises."""
        try:
            await self._uploads.in_transaction(lambda conn: self._retry(conn, letter))
        except UploadRefusedError as refusal:
            again = [*refusal.reason, letter]
            await self._uploads.tried(lambda conn: conn.execute(_FAILED, again))
            raise

    async def discard(self, letter: int) -> None:
        """Give a dead letter up and delete its contents. Raises HW_6123, or what `Uploads.take` raises."""
        await self._uploads.in_transaction(lambda conn: self._settle(conn, letter, "discarded"))

    async def _waiting(self, conn: psycopg.AsyncConnection, after: int, limit: int) -> list[DeadLetter]:
        with ledger.prepared():
            rows = await (await conn.execute(_WAITING, [after, limit])).fetchall()
        return [DeadLetter(*row) for row in rows]

    async def _one(self, conn: psycopg.AsyncConnection, letter: int) -> tuple[DeadLetter, str]:
        found = await self._waiting(conn, letter - 1, 1)
        row = await (await conn.execute(_PAYLOAD, [letter])).fetchone()
        if row is None or not found or found[0].id != letter:
            raise unknown_letter(letter)
        return found[0], row[0]

    async def _retry(self, conn: psycopg.AsyncConnection, letter: int) -> None:
        with ledger.prepared():
            row = await (await conn.execute(_DEVICE, [letter])).fetchone()
        if row is None:
            raise unknown_letter(letter)
        device, transaction = Device(*row[:3]), transaction_in(row[3])
        client = await ledger.open_client(conn, self._settings, device)
        entries = await ledger.not_applied(conn, client, transaction)
        await self._settle(conn, letter, "applied")
        parts = dict(self._routed.parts(device, transaction_of(entries))) if entries else {}
        if (own := parts.pop(self._settings.login.name, None)) is not None:
            await write_all(conn, self._settings, device, own.entries)
        # Others come last: if one fails, nothing was done here, and if this is not committed, they know it next time
        for source, part in parts.items():
            await self._routed.by_source[source].apply(device, part)

    async def _settle(self, conn: psycopg.AsyncConnection, letter: int, state: str) -> None:
        with ledger.prepared():
            row = await (await conn.execute(_SETTLE, [state, letter])).fetchone()
            if row is None:
                raise unknown_letter(letter)
            await conn.execute(_RELEASE, [row[0], letter])


def transaction_in(payload: str) -> ClientTransaction:
    """Read back what `ClientTransaction.text` wrote."""
    held = read_json(payload)
    assert isinstance(held, list)
    entries = []
    for fields in held:
        assert isinstance(fields, Mapping)
        number = fields["op_id"]
        assert isinstance(number, Number)
        entries.append(entry_of(int(number.text), fields))
    return transaction_of(entries)
