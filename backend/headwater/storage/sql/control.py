"""Small tables: texts under a key, bucket definitions, the version that is served, revocations, and what operators
did and keep."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.storage.contract.store import (
    CHANGES_KEPT,
    AdminChange,
    Revocation,
    RevokedKind,
    StoredCase,
    StoreError,
)
from headwater.storage.sql.cursor import Cursor, Row

PUT_DEFINITION = (
    "insert into definitions (source, name, digest, state) values (?, ?, ?, ?) on conflict (name, source) do "
)
REVOCATION = "seq, kind, value, since, until"


LEFT = ""
"""The source of definitions that a removed source left: their buckets stay, empty, while a version has them."""

OF_SOURCES = (
    "slot",
    "poison",
    "sampling",
    "computed tables",
    "names of partitioned tables",
    "told",
    "retire",
    "lease",
    "sync config file",
)
"""The words with which keys in `meta` begin that belong to a source; its name follows."""


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


def lock_definitions(db: Cursor) -> None:
    """Within a write transaction: keep other sources from beginning or ending to have a definition until the commit. It
    holds up no flush, and comes before `lock_state`."""
    db.rows(f"select 1 from meta where key = 'secret'{db.dialect.for_update}")


def forget_source(db: Cursor, source: str) -> None:
    """Within a write transaction: delete what is noted of a source, except its lease, for epochs never repeat.
    Definitions that it still has are nobody's then."""
    still = "select ?, name, digest, 'complete' from definitions where source = ? and state in ('building', 'complete')"
    db.execute(f"insert into definitions (source, name, digest, state) {still} on conflict do nothing", LEFT, source)
    db.execute("delete from definitions where source = ?", source)
    db.execute("delete from definitions where name not in (select name from definitions where state <> 'retired')")
    db.execute("delete from requests where source = ?", source)
    db.execute(f"delete from meta where key {db.dialect.among}", [f"{words} {source}" for words in OF_SOURCES])
    db.execute("update flushes set source = '', lsn = 0 where source = ?", source)
    db.execute("delete from sources where tag = ?", source)
    db.execute("delete from ticks where source = ?", source)


def known_sources(db: Cursor) -> list[str]:
    """See `StoreWriter.sources`."""
    noted = "select substr(key, 6) from meta where key like 'slot %'"
    tables = "select source from tables where state <> 'dropped'"
    kept = f"select tag as name from sources union {tables} union select source from definitions"
    known = f"select name from ({kept} union {noted}) s where name <> ? order by name"
    return [name for (name,) in db.rows(known, LEFT)]


def holders(db: Cursor) -> dict[str, list[str]]:
    """By bucket definition, the sources that have it."""
    found: dict[str, list[str]] = {}
    held = "select source, name from definitions where state <> 'retired' and source <> ?"
    for holder, name in db.rows(held, LEFT):
        found.setdefault(name, []).append(holder)
    return found


def definitions_of(db: Cursor, source: str) -> tuple[frozenset[str], frozenset[str]]:
    """See `StoreWriter.definitions_of`."""
    own = {name: having for name, having in holders(db).items() if source in having}
    alone = frozenset(name for name, having in own.items() if having == [source])
    return alone, frozenset(own.keys() - alone)


def may_follow(db: Cursor, version: int) -> bool:
    """Whether a version by which a source was read is to be served now: one in processing. One that was replaced, too,
    if an older one is served, for which the source has no rows any more."""
    states: dict[int, str] = dict(db.rows("select id, state from versions where id = ? or state = 'active'", version))
    state = states.pop(version, None)
    return state == "processing" or (state == "stopped" and any(active < version for active in states))


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


def complete(db: Cursor, source: str, definitions: Mapping[str, str]) -> None:
    """Within a write transaction: mark these bucket definitions of a source as complete."""
    put = f"{PUT_DEFINITION} update set digest = excluded.digest, state = excluded.state"
    db.execute_many(put, [(source, name, digest, "complete") for name, digest in definitions.items()])


def complete_definitions(db: Cursor, source: str) -> dict[str, str]:
    """Complete bucket definitions of a source, name to digest."""
    query = "select name, digest from definitions where source = ? and state = 'complete' order by name"
    return dict(db.rows(query, source))


def served_definitions(db: Cursor) -> dict[str, str]:
    """Bucket definitions that are complete for every source that has them, name to digest."""
    return dict(
        db.rows(
            "select name, min(digest) from definitions group by name"
            " having sum(case when state = 'complete' then 0 else 1 end) = 0 order by name"
        )
    )


def waiting_for(db: Cursor, needed: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The sources that were followed before and for which not all of these definitions are complete."""
    followed = {name for (name,) in db.rows("select tag from sources")}
    return [
        source
        for source, definitions in needed.items()
        if source in followed and not definitions.items() <= complete_definitions(db, source).items()
    ]


def revocations(db: Cursor, after_seq: int) -> list[Revocation]:
    """See `StoreReader.revocations`."""
    query = f"select {REVOCATION} from revocations where seq > ? and until >= {db.dialect.now} order by seq"
    return [revocation(row) for row in db.rows(query, after_seq)]


def revocation(row: Row) -> Revocation:
    """A row of REVOCATION."""
    seq, kind, value, since, until = row
    return Revocation(seq, RevokedKind(kind), value, float(since), float(until))


# what operators did and keep


def note_change(db: Cursor, who: str, role: str, what: str, detail: str) -> None:
    """Within a write transaction: note a change, and forget the oldest ones."""
    insert = f"insert into changes (at, who, role, what, detail) values ({db.dialect.now}, ?, ?, ?, ?) returning id"
    ((number,),) = db.rows(insert, who, role, what, detail)
    db.execute("delete from changes where id <= ?", number - CHANGES_KEPT)


def changes(db: Cursor, before: int | None, limit: int) -> list[AdminChange]:
    """The newest changes, of those before one if that is given."""
    query = "select id, at, who, role, what, detail from changes"
    ending = "order by id desc limit ?"
    rows = (
        db.rows(f"{query} {ending}", limit)
        if before is None
        else db.rows(f"{query} where id < ? {ending}", before, limit)
    )
    return [AdminChange(number, float(at), *texts) for number, at, *texts in rows]


def put_case(db: Cursor, name: str, content: str, author: str) -> None:
    """Within a write transaction: store a case in place of another one of this name."""
    db.execute(
        f"insert into cases (name, content, updated, author) values (?, ?, {db.dialect.now}, ?) on conflict (name)"
        " do update set content = excluded.content, updated = excluded.updated, author = excluded.author",
        *(name, content, author),
    )


def cases(db: Cursor) -> list[StoredCase]:
    """All stored cases, by name."""
    rows = db.rows("select name, content, updated, author from cases order by name")
    return [StoredCase(name, content, float(updated), author) for name, content, updated, author in rows]
