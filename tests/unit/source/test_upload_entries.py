"""JSON that keeps everything, and digests by which an entry is known again."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.source.upload.entries import (
    MOST_NAMES,
    Json,
    Number,
    TooManyValuesError,
    entry_of,
    read_json,
    transaction_of,
    write_json,
)
from headwater.source.upload.letters import transaction_in

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(ANY)
def test_round_trip(value: object) -> None:
    text = json.dumps(value)
    written = write_json(read_json(text))
    assert json.loads(written) == value
    assert written.isascii()
    assert write_json(read_json(written)) == written


@pytest.mark.parametrize(
    "text", ["0.10", "1e400", "-0.0", "12345678901234567890.123456789012345678901234567890", "1E+2"]
)
def test_number(text: str) -> None:
    assert read_json(text) == Number(text)
    assert write_json(Number(text)) == text


@pytest.mark.parametrize(
    ("text", "plain"), [("2.0", "2"), ("-2.000", "-2"), ("2.5", "2.5"), ("2", "2"), ("2.0e1", "2.0e1")]
)
def test_number_plain(text: str, plain: str) -> None:
    assert Number(text).plain == plain


def test_half_a_surrogate_pair() -> None:
    assert write_json(read_json('"\\ud800"')) == '"\\ud800"'


@pytest.mark.parametrize("text", ["", "{", "NaN", "Infinity", "[1,]", "'x'", "[" * 100_000])
def test_invalid_json(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own
        read_json(text)


@given(ANY)
def test_very_many_values(value: object) -> None:
    text = json.dumps([value, "[," * 200_000])
    assert write_json(read_json(text)) == write_json([read_json(json.dumps(value)), "[," * 200_000])


def filled(part: str, size: int = 4 << 20) -> str:
    return "[" + part * (size // len(part)) + "1]"


@pytest.mark.parametrize("part", ["[],", "{},", "[[]],", '{"a":{}},'])
def test_too_many_arrays_and_objects(part: str) -> None:
    with pytest.raises(TooManyValuesError):
        read_json(filled(part))


def test_too_many_names() -> None:
    names = {f"n{number}": 1 for number in range(MOST_NAMES)}
    assert isinstance(read_json(json.dumps([names])), list)
    with pytest.raises(TooManyValuesError):
        read_json(json.dumps([names | {"one": 1}]))


@pytest.mark.parametrize("part", ["[],", '"",', "null,"])
def test_other_threads_run_meanwhile(part: str) -> None:
    """Without that, whoever uploads this stops everybody for as long as it takes."""
    over, turns = threading.Event(), 0

    def others() -> None:
        nonlocal turns
        while not over.wait(0.001):
            turns += 1

    with ThreadPoolExecutor(1) as pool:
        pool.submit(others)
        with suppress(TooManyValuesError):
            read_json(filled(part))
        over.set()
    assert turns > 20


FIELDS: dict[str, Json] = {
    "op_id": Number("7"), "op": "PATCH", "type": "notes", "id": "1", "data": {"a": Number("1"), "b": "x"},
    "old": {"a": None}, "metadata": "m",
}  # fmt: skip


def test_equal_digests() -> None:
    known = entry_of(7, FIELDS).digest
    turned: dict[str, Json] = {**dict(reversed(FIELDS.items())), "data": {"b": "x", "a": Number("1")}}
    assert entry_of(7, turned).digest == known
    assert entry_of(7, {**FIELDS, "tx_id": Number("3")}).digest == known
    without = {**FIELDS, "metadata": None}
    assert entry_of(7, without).digest == entry_of(7, {k: v for k, v in without.items() if v is not None}).digest


@pytest.mark.parametrize(
    "change",
    [{"op": "PUT"}, {"type": "n"}, {"id": "2"}, {"data": {"a": Number("2"), "b": "x"}}, {"data": {"a": "1", "b": "x"}},
     {"data": None}, {"old": {"a": Number("1")}}, {"metadata": None}],
)  # fmt: skip
def test_different_digests(change: dict[str, Json]) -> None:
    assert entry_of(7, {**FIELDS, **change}).digest != entry_of(7, FIELDS).digest


def test_dead_letter() -> None:
    transaction = transaction_of([entry_of(7, FIELDS), entry_of(9, {**FIELDS, "op_id": Number("9")})])
    again = transaction_in(transaction.text)
    assert (again.digest, again.first_op, again.last_op) == (transaction.digest, 7, 9)


@pytest.mark.parametrize("numbers", [[], [2, 1], [1, 1], [0], [-1]])
def test_op_ids_increase(numbers: list[int]) -> None:
    with pytest.raises(ValueError, match="increase"):
        transaction_of([entry_of(number, FIELDS) for number in numbers])
