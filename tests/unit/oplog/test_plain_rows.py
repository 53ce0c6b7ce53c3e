"""Rows that generated code writes become what the general way makes of them: the same stored rows, ops and buckets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.decode.types import Oid, TypeCatalog
from headwater.decode.wire import DecodeError
from headwater.oplog import transform
from headwater.oplog.change import UNCHANGED, Column, Delete, Insert, Relation, ReplicaIdentity, RowChange, Update
from headwater.oplog.keys import StoreKeys
from headwater.oplog.limits import SURELY_AN_OP
from headwater.oplog.transform import Bucket, DraftOp, TableTransform
from headwater.replication.stream.fold import Fold, IncompleteRows
from headwater.replication.tables.live import LiveContext, LiveTable
from headwater.storage.contract.parts import CurrentRow
from headwater_rules.compiler.compile import compile_config
from tests.support.examples import examples

_TEXT = 25
_TEXTS = ("", "a", "b", 'quoted "a"', "back\\slash", "tab\tnew\nline", "é☃\U0001f600", "\x7f\x01")
_CELLS: Mapping[int, Sequence[str]] = {
    _TEXT: _TEXTS,
    Oid.BOOL: ("t", "f"),
    Oid.INT4: ("0", "-7", "2147483647"),
    Oid.INT8: ("1", "-9223372036854775808"),
    Oid.FLOAT8: ("1", "1.5", "-0", "1e+300", "NaN", "-Infinity"),
    1700: ("1.50", "99999999999999999999"),  # numeric
    Oid.BYTEA: ("\\x", "\\x00ff"),
    Oid.JSONB: ('{"a": [1, "ü"]}', "null"),
    Oid.DATE: ("2026-02-28", "infinity"),
    Oid.TIMESTAMPTZ: ("2026-01-02 03:04:05.6+00", "infinity"),
    Oid.PG_LSN: ("0/1A", "FF/0"),
    1007: ("{1,NULL,3}", "{}"),  # int4[]
    3904: ("[1,5)", "empty"),  # int4range
}
_PLAIN = (
    "SELECT * FROM t",
    "SELECT * FROM t WHERE a = auth.user_id()",
    "SELECT * FROM t WHERE a = auth.user_id() AND b = auth.parameter('b')",
    "SELECT id, b, a AS c FROM t AS things WHERE b = auth.parameter('b')",
    "SELECT a FROM t WHERE c = auth.parameter('c')",
)
_GENERAL = (
    "SELECT b AS id, a FROM t",
    "SELECT id, a || '!' AS a FROM t WHERE a = auth.user_id()",
    "SELECT * FROM t WHERE a = auth.user_id() AND b IS NULL",
    "SELECT * FROM u WHERE a IN (SELECT a FROM t WHERE b = auth.user_id())",
)


class _General(TableTransform):
    """Does each row in the most general way."""

    def _move_in_place(self, *_: object) -> None:
        return None


class _Flush:
    """A flush that remembers what is written."""

    now = 0

    def __init__(self) -> None:
        self.rows: dict[str, CurrentRow] = {}
        self.lookups: dict[str, object] = {}
        self.ops: list[tuple[DraftOp, Bucket]] = []

    def load(self, _: int, row_ids: Sequence[str], __: int) -> tuple[dict[str, CurrentRow], int]:
        return {row_id: self.rows[row_id] for row_id in row_ids if row_id in self.rows}, len(row_ids)

    def joined(self, _: Sequence[str]) -> dict[str, list[str]]:
        return {}

    def put_rows(self, _: int, rows: Iterable[CurrentRow]) -> None:
        self.rows |= {row.row_id: row for row in rows}

    def delete_rows(self, _: int, row_ids: Iterable[str]) -> None:
        for row_id in row_ids:
            del self.rows[row_id]

    def replace_lookups(self, _: int, row_id: str, entries: Sequence[object]) -> None:
        self.lookups[row_id] = list(entries)

    def append(self, ops: Iterable[DraftOp], buckets: Mapping[str, Bucket]) -> None:
        known = {op.bucket: bucket for op, bucket in self.ops} | {each.key: each for each in buckets.values()}
        self.ops += [(op, known[op.bucket]) for op in ops]


class _Side:
    """One way of writing the rows of a table."""

    def __init__(self, table: LiveTable) -> None:
        self.table = table
        self.flush = _Flush()
        self.lacking = IncompleteRows()

    def apply(self, changes: Sequence[RowChange]) -> str:
        """Returns the error, if there is one."""
        fold = Fold(
            self.flush,  # type: ignore[arg-type]
            self.lacking,
            1 << 20,
            fill=_nobody,
            defer_to_resync=_nobody,  # type: ignore[arg-type]
            written={},
        )
        try:
            fold.apply([(self.table, change) for change in changes])
        except DecodeError as error:
            return str(error)
        return " ".join(fold.evaluation_errors)


def _nobody(*_: object) -> list[tuple[str | None, ...] | None]:
    raise AssertionError("nothing is asked of the source")


def _relation(key: int, types: Sequence[int]) -> Relation:
    columns = [Column("id", key, -1, True)]
    columns += [Column(name, oid, -1, False) for name, oid in zip("abc", types, strict=True)]
    return Relation(7, "public", "t", ReplicaIdentity.DEFAULT, tuple(columns))


def _table(queries: Sequence[str], relation: Relation, edition: int = 3) -> LiveTable:
    streams = "".join(
        f'  s{number}: {{accept_potentially_dangerous_queries: true, query: "{query}"}}\n'
        for number, query in enumerate(queries)
    )
    plan = compile_config(f"config: {{edition: {edition}}}\nstreams:\n{streams}").plan
    table = LiveContext("default", (plan,), TypeCatalog(), StoreKeys(b"secret"), 1 << 20).table(3, (relation,))
    assert table is not None
    return table


def _in_general(table: LiveTable) -> LiveTable:
    known = table.bound.transform
    general = _General(known.table_id, known.keys, known.convert, known.program, known.definitions)
    return replace(table, bound=replace(table.bound, transform=general))


@st.composite
def _histories(draw: st.DrawFn) -> tuple[LiveTable, list[list[RowChange]]]:
    key = draw(st.sampled_from([_TEXT, Oid.INT4]))
    types = draw(st.lists(st.sampled_from([_TEXT, *_CELLS]), min_size=3, max_size=3))
    relation = _relation(key, types)
    queries = draw(st.lists(st.sampled_from(_PLAIN * 3 + _GENERAL), min_size=1, max_size=2))
    ids = st.sampled_from(("1", "2", "3") if key == Oid.INT4 else ("1", "a", "é"))
    kept = [st.sampled_from([None, UNCHANGED, *_CELLS[oid]]) for oid in types]
    full = [st.sampled_from([None, *_CELLS[oid]]) for oid in types]
    gone = st.builds(lambda row_id: Delete(relation, (row_id, None, None, None), True), ids)
    change = st.one_of(
        st.builds(lambda *cells: Insert(relation, cells), ids, *full),
        st.builds(lambda *cells: Update(relation, None, False, cells), ids, *kept),
        st.builds(lambda old, *cells: Update(relation, (old, None, None, None), True, cells), ids, ids, *kept),
        gone,
    )
    return _table(queries, relation), draw(st.lists(st.lists(change, min_size=1, max_size=4), min_size=1, max_size=5))


@settings(max_examples=examples(500), deadline=None)
@given(_histories())
def test_generated_and_general_agree(history: tuple[LiveTable, list[list[RowChange]]]) -> None:
    table, chunks = history
    sides = _Side(table), _Side(_in_general(table))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transform, "_KNOWN_BUCKETS", 2)  # so that some are forgotten
        for chunk in chunks:
            generated, general = [(side.apply(chunk), side.lacking.of(table.id), vars(side.flush)) for side in sides]
            assert generated == general


@pytest.mark.parametrize("query", _PLAIN)
def test_generated_for_columns(query: str) -> None:
    assert _table([query], _relation(_TEXT, (_TEXT, _TEXT, Oid.INT4))).bound.transform.plain is not None


@pytest.mark.parametrize(
    ("queries", "types"),
    [
        *(([query], (_TEXT, _TEXT, _TEXT)) for query in _GENERAL),
        (_PLAIN[:2], (_TEXT, _TEXT, _TEXT)),  # two entries
        ([_PLAIN[0]], (_TEXT, Oid.BYTEA, _TEXT)),  # a blob is left out of the data
    ],
)
def test_general_for_expressions(queries: Sequence[str], types: Sequence[int]) -> None:
    assert _table(queries, _relation(_TEXT, types)).bound.transform.plain is None


def test_value_of_another_type() -> None:
    relation = _relation(_TEXT, (_TEXT, _TEXT, Oid.INT4))
    table = _table([_PLAIN[1]], relation)
    errors = [_Side(each).apply([Insert(relation, ("1", "a", "b", "c"))]) for each in (table, _in_general(table))]
    assert errors[0] == errors[1]
    assert "column c" in errors[0]


def test_large_data() -> None:
    relation = _relation(_TEXT, (_TEXT, _TEXT, _TEXT))
    table = _table([_PLAIN[0]], relation)
    sides = _Side(table), _Side(_in_general(table))
    for side in sides:
        side.apply([Insert(relation, ("1", "\x01" * (SURELY_AN_OP // 6 + 1), "b", None))])
        side.apply([Update(relation, None, False, ("1", UNCHANGED, "c", None))])
    assert vars(sides[0].flush) == vars(sides[1].flush)
    assert len(sides[0].flush.ops) == 2


def test_names_of_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform, "_KNOWN_BUCKETS", 2)
    relation = _relation(_TEXT, (_TEXT, _TEXT, _TEXT))
    table = _table([_PLAIN[1]], relation)
    sides = _Side(table), _Side(_in_general(table))
    owners = ["a", "b", "c", "long" * 200, "a", "long" * 200, "d", "b"]
    for side in sides:
        side.apply([Insert(relation, (str(number), owner, None, None)) for number, owner in enumerate(owners)])
    assert vars(sides[0].flush) == vars(sides[1].flush)
    assert len({name.name for _, name in sides[0].flush.ops}) == 5
