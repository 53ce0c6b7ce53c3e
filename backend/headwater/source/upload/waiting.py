"""What a device hears of its own dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import psycopg

from headwater.source.upload import ledger
from headwater.source.upload.apply import Uploads
from headwater.source.upload.entries import Device
from headwater.source.upload.errors import Reason

_OF_DEVICE = """
select d.id, d.last_op, d.parked_at, d.code, d.sqlstate, d.message, d.op_id
from headwater_upload.dead_letters d join headwater_upload.clients c using (client)
where c.device = %s and d.state = 'parked' order by d.id desc limit %s
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A dead letter as its own device hears of it."""

    letter: int
    last_op: int
    parked_at: datetime
    reason: Reason


async def waiting_of(uploads: Uploads, device: Device, limit: int) -> list[Waiting]:
    """The newest dead letters of a device, newest first. Raises what `Uploads.take` raises."""

    async def read(conn: psycopg.AsyncConnection) -> list[Waiting]:
        with ledger.prepared():
            rows = await (await conn.execute(_OF_DEVICE, [device.key, limit])).fetchall()
        return [Waiting(letter, last_op, at, Reason(*why)) for letter, last_op, at, *why in rows]

    return await uploads.tried(read)
