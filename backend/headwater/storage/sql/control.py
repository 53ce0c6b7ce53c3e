"""Small tables: texts under a key, bucket definitions, the version that is served, and revocations."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.storage.contract.store import Revocation, RevokedKind, StoreError
from headwater.storage.sql.cursor import Cursor, Row

PUT_DEFINITION = "insert into definitions (name, digest, state) values (?, ?, ?) on conflict (name) do "
REVOCATION = "seq, kind, value, since, until"


def get_meta(db: Cursor, key: str) -> str | None:
    """The text under a key."""
    row = db.one("select value from meta where key = ?", key)
    return None if row is None else str(row[0])


def set_meta(db: Cursor, key: str, text: str) -> None:
    """Within a write transaction: store a text under a key."""
    db.execute("insert into meta values (?, ?) on conflict (key) do update set value = excluded.value", key, text)


def secret(db: Cursor) -> bytes:
    """The secret that all keys and digests of the store are made with. Raises StoreError."""
    row = db.one("select value from meta where key = 'secret'")
    if row is None:
        raise StoreError(
            "the store has lost its secret", db.where, "configure another place in storage to build a new one"
        )
    return row[0] if isinstance(row[0], bytes) else bytes.fromhex(row[0])


def set_active(db: Cursor, version: int) -> None:
    """Within a write transaction: serve `version` and stop the one before."""
    now = db.dialect.now
    if not db.rows("select 1 from versions where id = ?", version):
        raise StoreError("there is no such version", f"version {version}", "see `headwater rules versions`")
    db.execute(f"update versions set state = 'stopped', stopped_at = {now} where state = 'active' and id <> ?", version)
    db.execute(
        f"update versions set state = 'active', activated_at = {now}, stopped_at = 0, note = '' where id = ?",
        version,
    )
    db.execute("update state set config = ?", version)


def complete(db: Cursor, definitions: Mapping[str, str]) -> None:
    """Within a write transaction: mark these bucket definitions as complete."""
    for name, digest in definitions.items():
        db.execute(
            f"{PUT_DEFINITION} update set digest = excluded.digest, state = excluded.state", name, digest, "complete"
        )


def complete_definitions(db: Cursor) -> dict[str, str]:
    """Complete bucket definitions, name to digest."""
    rows = db.rows("select name, digest from definitions where state = 'complete' order by name")
    return dict(rows)


def revocations(db: Cursor, after_seq: int) -> list[Revocation]:
    """See `StoreReader.revocations`."""
    query = f"select {REVOCATION} from revocations where seq > ? and until >= {db.dialect.now} order by seq"
    return [revocation(row) for row in db.rows(query, after_seq)]


def revocation(row: Row) -> Revocation:
    """A row of REVOCATION."""
    seq, kind, value, since, until = row
    return Revocation(seq, RevokedKind(kind), value, float(since), float(until))
