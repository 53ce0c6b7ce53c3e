"""Writers that commit random transactions beside each other and note what each did."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import errors

from tests.storm.ledger import EVERYTHING, Effect, Ledger, Transaction
from tests.storm.tables import (
    HEAVY_SIZES,
    KINDS,
    LEDGER,
    REGIONS,
    ROOMS,
    USERS,
    Kind,
    Published,
    Row,
    Version,
    completed,
    select_rows,
    version_of,
)
from tests.support.working_thread import WorkingThread

IDS = 40
_LONGEST = 8
_RECONNECT_SECONDS = 120.0

Log = Callable[[str], None]


class RolledBack(Exception):
    """The writer thought better of it."""


class Writer(WorkingThread):
    """Does `count` transactions, all with rows that are `heavy` or none. `published` tells of each table what devices
    can see of it in this round. `pace` is the pause after a transaction, on the average, in seconds."""

    def __init__(
        self,
        name: str,
        seed: str,
        dsn: str,
        count: int,
        ledger: Ledger,
        published: Mapping[str, Published],
        log: Log,
        pace: float,
        *,
        heavy: bool = False,
    ) -> None:
        super().__init__(name)
        self._chance = random.Random(seed)
        self._dsn = dsn
        self.count = count
        self._ledger = ledger
        self._published = published
        self._kinds = [kind for name, kind in sorted(KINDS.items()) if name in published and kind.heavy == heavy]
        self._log = log
        self._pace = pace
        self._conn: psycopg.Connection[Any] | None = None
        self.tried = 0
        self.committed = 0

    def work(self) -> None:
        try:
            for number in range(self.count if self._kinds else 0):
                self._transaction(f"{self.name}-{number}")
                self.tried += 1
                self._ended.wait(self._chance.expovariate(1 / self._pace))
        finally:
            self.tried = self.count
            if self._conn is not None:
                self._conn.close()

    def _connection(self) -> psycopg.Connection[Any]:
        while self._conn is None or self._conn.closed or self._conn.broken:
            self._conn = connect_patiently(self._dsn)
            with suppress(psycopg.OperationalError):  # the server can go again at once
                self._conn.execute("set lock_timeout = '20s'; set application_name = 'storm writer'")
                self._conn.commit()
        return self._conn

    def _transaction(self, name: str) -> None:
        transaction = Transaction(name)
        steps = [self._chance.randrange(2**62) for _ in range(self._chance.randint(1, _LONGEST))]
        give_up = self._chance.random() < 0.08
        conn = self._connection()
        try:
            self._statements(conn, transaction, steps)
            if give_up:
                raise RolledBack
            conn.execute(f"insert into {LEDGER} (id) values (%s)", [name])
        except (psycopg.Error, RolledBack) as error:
            self._log(f"{name} rolled back: {type(error).__name__} {_first_line(error)}")
            with suppress(psycopg.OperationalError):  # the server is gone, and the transaction with it
                conn.rollback()
            return
        self._commit(conn, transaction)

    def _commit(self, conn: psycopg.Connection[Any], transaction: Transaction) -> None:
        self._ledger.begin_commit(transaction)
        try:
            conn.commit()
            committed = True
        except psycopg.Error as error:
            self._log(f"{transaction.name} commit failed: {type(error).__name__} {_first_line(error)}")
            committed = self._was_committed(transaction.name)
        self._ledger.end_commit(transaction, committed=committed)
        self.committed += committed
        self._log(f"{transaction.name} {'committed' if committed else 'lost'}")

    def _was_committed(self, name: str) -> bool:
        while True:
            conn = self._connection()
            with suppress(psycopg.OperationalError):  # whoever comes next knows
                found = conn.execute(f"select from {LEDGER} where id = %s", [name]).fetchall()
                conn.rollback()
                return bool(found)

    def _statements(self, conn: psycopg.Connection[Any], transaction: Transaction, steps: Sequence[int]) -> None:
        chance = random.Random(steps[0])
        while steps:
            taken = chance.randint(1, 3) if chance.random() < 0.3 else 0
            if not taken:
                transaction.effects += self._statement(conn, transaction.name, random.Random(steps[0]))
                steps = steps[1:]
                continue
            some, steps = steps[:taken], steps[taken:]
            transaction.effects += self._within_savepoint(conn, transaction.name, some, keep=chance.random() < 0.6)

    def _within_savepoint(
        self, conn: psycopg.Connection[Any], name: str, steps: Sequence[int], *, keep: bool
    ) -> list[Effect]:
        effects: list[Effect] = []
        conn.execute("savepoint s")
        try:
            for step in steps:
                effects += self._statement(conn, name, random.Random(step))
            if keep:
                conn.execute("release savepoint s")
                return effects
        except (errors.IntegrityError, errors.ObjectNotInPrerequisiteState, errors.InvalidColumnReference) as error:
            self._log(f"{name} statement failed: {type(error).__name__}")
        conn.execute("rollback to savepoint s")
        self._log(f"{name} rolled back to the savepoint")
        return []

    # one statement

    def _statement(self, conn: psycopg.Connection[Any], name: str, chance: random.Random) -> list[Effect]:
        kind = chance.choice(self._kinds)
        action = _pick(chance, kind)
        if action == "truncate":
            self._log(f"{name} truncate {kind.name}")
            conn.execute(f"truncate {kind.name}")
            return [Effect(_draw(conn), kind.name, "", None)]
        touched, text = _ACTIONS[action](conn, kind, chance)
        self._log(f"{name} {text} -> {touched}")
        return self._effects(conn, kind, touched)

    def _effects(self, conn: psycopg.Connection[Any], kind: Kind, ids: list[str]) -> list[Effect]:
        if not ids:
            return []
        excluded = self._ledger.excluded  # told before the change, which waits for this transaction's lock since
        judged = kind.name not in excluded and EVERYTHING not in excluded
        published = self._published[kind.name] if judged else None
        rows: dict[str, list[Row]] = {row_id: [] for row_id in ids}
        versions: dict[str, list[Version]] = {row_id: [] for row_id in ids}
        found = conn.execute(f"{select_rows(kind, published)} where x.id = any(%s)", [ids]).fetchall()
        for row_id, fields, passes in found:
            whole = completed(kind, fields)
            versions[row_id].append(version_of(kind, whole))
            if published and passes:
                rows[row_id] += published.shown(whole)
        order = _draw(conn)
        return [Effect(order, kind.name, row_id, tuple(rows[row_id]), tuple(versions[row_id])) for row_id in versions]


def connect_patiently(dsn: str) -> psycopg.Connection[Any]:
    """A connection, even if the server is just starting again."""
    pause, waited = threading.Event(), 0.0
    while True:
        try:
            return psycopg.connect(dsn)
        except psycopg.OperationalError:
            if waited > _RECONNECT_SECONDS:
                raise
            pause.wait(0.1)
            waited += 0.1


def _draw(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute("select nextval('clock')").fetchone()
    assert row is not None
    return int(row[0])


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


_WEIGHTS = {
    "insert": 40,
    "upsert": 10,
    "update": 40,
    "enlarge": 12,
    "rekey": 10,
    "update_many": 6,
    "delete": 20,
    "twin": 6,
    "truncate": 1,
}


def _pick(chance: random.Random, kind: Kind) -> str:
    weights = dict(_WEIGHTS)
    if not kind.key:
        del weights["upsert"]
    if kind.fixed:
        weights = {"insert": 30, "twin": 3, "truncate": 1, "update": 1}  # the last one fails
    elif kind.heavy:
        weights = {"touch": 95, "resize": 3, "delete": 1}
    elif kind.unique:
        del weights["twin"]
    return chance.choices(list(weights), list(weights.values()))[0]


Touched = tuple[list[str], str]
Conn = psycopg.Connection[Any]


def _values(kind: Kind, chance: random.Random) -> dict[str, object]:
    number = chance.randrange(IDS if not kind.fixed else 10**6)
    values: dict[str, object] = {"id": f"{number:02}"}
    match kind.name:
        case "paired":
            values = {"a": number // 8, "b": f"b{number % 8}", "id": f"{number // 8}/{number % 8}"}
        case "leaves":
            values["region"] = chance.choice(REGIONS)
        case "rooms":
            values["id"] = chance.choice(ROOMS)
        case "guests":
            values["room"] = chance.choice(ROOMS)
        case _:
            pass
    values |= {"owner": chance.choice(USERS), "n": chance.randrange(100), "body": _word(chance)}
    if chance.random() < 0.4:
        values["big"] = _large(chance)
    return values


def _word(chance: random.Random) -> str | None:
    return chance.choice([None, "", "å\t\\n\"'", f"w{chance.randrange(1000)}", f"w{chance.randrange(1000)}"])


def _large(chance: random.Random) -> str:
    seed = chance.randrange(10**6)
    return hashlib.md5(str(seed).encode()).hexdigest() * chance.choice([10, 90, 200])


def _lock(conn: Conn, kind: Kind, *ids: object) -> None:
    """Rows that may share an id are told of together, so nobody else may change one of them meanwhile."""
    if not kind.unique:
        for row_id in sorted(map(str, ids)):
            conn.execute("select pg_advisory_xact_lock(hashtext(%s))", [f"{kind.name} {row_id}"])


def _ids(conn: Conn, statement: str, *values: object) -> list[str]:
    """Run a statement; the ids of the rows that it wrote."""
    return sorted({str(row[0]) for row in conn.execute(f"{statement} returning id", values).fetchall()})


def _insert(conn: Conn, kind: Kind, chance: random.Random, after: str = "") -> Touched:
    values = _values(kind, chance)
    _lock(conn, kind, values["id"])
    marks = ", ".join(["%s"] * len(values))
    statement = f"insert into {kind.name} ({', '.join(values)}) values ({marks}) {after}"
    return _ids(conn, statement, *values.values()), f"insert {kind.name} {values['id']} {after}"


def _upsert(conn: Conn, kind: Kind, chance: random.Random) -> Touched:
    what = chance.choice(["nothing", "update set n = excluded.n, body = excluded.body"])
    return _insert(conn, kind, chance, f"on conflict ({kind.key}) do {what}")


def _change(conn: Conn, kind: Kind, chance: random.Random, **changes: object) -> Touched:
    row_id = _values(kind, chance)["id"]
    _lock(conn, kind, row_id)
    pairs = ", ".join(f"{column} = %s" for column in changes)
    touched = _ids(conn, f"update {kind.name} set {pairs} where id = %s", *changes.values(), row_id)
    return touched, f"update {kind.name} {row_id} {','.join(changes)}"


def _update(conn: Conn, kind: Kind, chance: random.Random) -> Touched:
    values = _values(kind, chance)
    columns = chance.sample(["owner", "n", "body"], chance.randint(1, 2))
    return _change(conn, kind, chance, **{column: values[column] for column in columns})


def _enlarge(conn: Conn, kind: Kind, chance: random.Random) -> Touched:
    return _change(conn, kind, chance, big=chance.choice([_large(chance), _large(chance), None]))


def _rekey(conn: Conn, kind: Kind, chance: random.Random) -> Touched:
    old, new = _values(kind, chance), _values(kind, chance)
    _lock(conn, kind, old["id"], new["id"])
    columns = [column for column in new if column in {"id", "a", "b", "region", "room"}]
    pairs = ", ".join(f"{column} = %s" for column in columns)
    values = [new[column] for column in columns]
    found = _ids(conn, f"update {kind.name} set {pairs} where id = %s", *values, old["id"])
    touched = sorted({str(old["id"]), str(new["id"])}) if found else []
    return touched, f"rekey {kind.name} {old['id']} to {values}"


def _update_many(conn: Conn, kind: Kind, chance: random.Random) -> Touched:
    if not kind.unique:
        conn.execute(f"lock table {kind.name} in share row exclusive mode")
    rest = chance.randrange(7)
    touched = _ids(conn, f"update {kind.name} set n = n + 7 where n %% 7 = %s", rest)
    return touched, f"update {kind.name} where n % 7 = {rest}"


def _delete(conn: Conn, kind: Kind, chance: random.Random) -> Touched:
    row_id = _values(kind, chance)["id"]
    _lock(conn, kind, row_id)
    return _ids(conn, f"delete from {kind.name} where id = %s", row_id), f"delete {kind.name} {row_id}"


def _twin(conn: Conn, kind: Kind, chance: random.Random) -> Touched:
    """A row that is there already once more, or one of several such less."""
    row_id = _values(kind, chance)["id"]
    if kind.name == "leaves":
        return _delete(conn, kind, chance)
    _lock(conn, kind, row_id)
    if kind.fixed or chance.random() < 0.6:
        statement = f"insert into {kind.name} select * from {kind.name} where id = %s limit 1"
    else:
        statement = f"delete from {kind.name} where ctid = (select ctid from {kind.name} where id = %s limit 1)"
    return _ids(conn, statement, row_id), f"twin {kind.name} {row_id}"


def _touch(conn: Conn, kind: Kind, chance: random.Random) -> Touched:
    """Most often a row that is too large, least often one of many MB: what it says is sent again each time."""
    (row_id,) = chance.choices([f"{n:02}" for n in range(len(HEAVY_SIZES))], [30, 30, 15, 15, 15, 15, 4, 1])
    statement = "update heavy set n = %s, body = %s where id = %s"
    return _ids(conn, statement, chance.randrange(100), _word(chance), row_id), f"touch heavy {row_id}"


def _resize(conn: Conn, kind: Kind, chance: random.Random) -> Touched:
    number = chance.randrange(len(HEAVY_SIZES))
    seed, times = chance.randrange(3), chance.choice([10, 1, 1, 1, 1]) * HEAVY_SIZES[number] // 10
    touched = _ids(
        conn,
        "insert into heavy (id, owner, n, body, big, spec) values (%s, %s, 1, 'sized', repeat(md5(%s), %s), %s)"
        " on conflict (id) do update set big = excluded.big, spec = excluded.spec",
        f"{number:02}", chance.choice(USERS), str(seed), times, f"{seed}:{times}",
    )  # fmt: skip
    return touched, f"resize heavy {number} to {times}"


_ACTIONS: Mapping[str, Callable[[Conn, Kind, random.Random], Touched]] = {
    "insert": _insert,
    "upsert": _upsert,
    "update": _update,
    "enlarge": _enlarge,
    "rekey": _rekey,
    "update_many": _update_many,
    "delete": _delete,
    "twin": _twin,
    "touch": _touch,
    "resize": _resize,
}
