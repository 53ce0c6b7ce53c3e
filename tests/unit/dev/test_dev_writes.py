"""Which uploads the demo's write endpoint takes as such, before it asks the database whether they are allowed."""

from __future__ import annotations

import uuid

import orjson
import pytest

from headwater.dev.writes import TABLES, InvalidWriteError, WriteKind, parse_batch

ROW = str(uuid.UUID(int=1))
LIST = str(uuid.UUID(int=2))


def batch(*writes: dict[str, object]) -> bytes:
    return orjson.dumps({"batch": list(writes)})


def put(table: str, **data: object) -> dict[str, object]:
    return {"op": "PUT", "type": table, "id": ROW, "data": data}


def test_a_batch_comes_out_in_its_order_with_typed_values() -> None:
    first, second = parse_batch(
        batch(
            put("todos", list_id=LIST, title="Milk", done=1, notes=None),
            {"op": "DELETE", "type": "lists", "id": LIST, "data": None},
        )
    )
    assert (first.kind, first.table, first.id) == (WriteKind.PUT, "todos", uuid.UUID(ROW))
    assert first.values == {"list_id": uuid.UUID(LIST), "title": "Milk", "done": True, "notes": None}
    assert (second.kind, second.table, second.values) == (WriteKind.DELETE, "lists", {})


@pytest.mark.parametrize("table", ["users", "activity", "pg_authid", "todos; drop table todos", "", None, 5])
def test_a_table_that_is_not_on_the_list_is_refused(table: object) -> None:
    assert table not in TABLES
    with pytest.raises(InvalidWriteError):
        parse_batch(batch({"op": "DELETE", "type": table, "id": ROW, "data": None}))


@pytest.mark.parametrize("column", ["email", "title = 'x', notes", "ctid", ""])
def test_a_column_that_is_not_on_the_list_is_refused(column: str) -> None:
    with pytest.raises(InvalidWriteError):
        parse_batch(batch(put("todos", **{column: "x"})))


@pytest.mark.parametrize(
    "data",
    [
        {"done": 2},
        {"done": "yes"},
        {"title": 5},
        {"title": "a\x00b"},
        {"list_id": "no uuid"},
        {"list_id": 7},
        {"notes": {"a": 1}},
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_and_not_repeated(data: dict[str, object]) -> None:
    with pytest.raises(InvalidWriteError) as refused:
        parse_batch(batch(put("todos", **data)))
    assert "todos." in str(refused.value)
    assert not any(str(value) in str(refused.value) for value in data.values() if isinstance(value, str))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"batch": {}}',
        b'{"batch": [1]}',
        batch({"op": "MERGE", "type": "todos", "id": ROW}),
        batch({"op": ["PUT"], "type": "todos", "id": ROW}),
        batch({"op": "PUT", "type": ["todos"], "id": ROW}),
        batch({"op": "PUT", "type": "todos", "id": "1"}),
        batch({"op": "PUT", "type": "todos"}),
        batch({"op": "PUT", "type": "todos", "id": ROW, "data": [1]}),
    ],
)
def test_a_body_of_another_shape_is_refused_for_good(body: bytes) -> None:
    with pytest.raises(InvalidWriteError) as refused:
        parse_batch(body)
    assert 400 <= refused.value.status < 500
    assert refused.value.status not in {401, 429}
