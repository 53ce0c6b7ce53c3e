"""Revocations."""

from __future__ import annotations

from headwater.storage.contract.revocations import Revocation, RevokedKind
from headwater.storage.shared.control.database import ControlDb, Row
from headwater.storage.shared.values import as_int

_COLUMNS = "seq, kind, value, since, until"


def revoke(db: ControlDb, kind: RevokedKind, value: str, seconds: float) -> Revocation:
    """See the contract."""
    with db.submitting():
        db.rows(f"delete from revocations where until < {db.now}")
        (found,) = db.rows(
            "insert into revocations (kind, value, since, until)"
            f" values (?, ?, {db.now}, {db.now} + ?) returning {_COLUMNS}",
            kind.value,
            value,
            seconds,
        )
    return _revocation(found)


def after(db: ControlDb, seq: int) -> list[Revocation]:
    """Those with a higher number that are not over, in order."""
    query = f"select {_COLUMNS} from revocations where seq > ? and until >= {db.now} order by seq"
    return [_revocation(row) for row in db.rows(query, seq)]


def last(db: ControlDb) -> int:
    """The number of the last one, 0 where there is none."""
    ((seq,),) = db.rows("select coalesce(max(seq), 0) from revocations")
    return as_int(seq)


def _revocation(row: Row) -> Revocation:
    seq, kind, value, since, until = row
    return Revocation(as_int(seq), RevokedKind(kind), str(value), float(str(since)), float(str(until)))
