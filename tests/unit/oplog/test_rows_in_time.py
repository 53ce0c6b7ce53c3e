"""Rows whose buckets depend on the time: the ops that come when time passes, and until when what is stored is right."""

from __future__ import annotations

import orjson

from headwater.bulk.bound_table import BoundTable, bind, distinct
from headwater.decode.types import Oid, TypeCatalog
from headwater.oplog.change import Column, Relation, ReplicaIdentity
from headwater.oplog.keys import StoreKeys
from headwater.oplog.transform import DraftOp
from headwater_rules.compiler.compile import compile_config
from headwater_rules.evaluate.clock import DAY, moment

KEYS = StoreKeys(b"secret")
COLUMNS = (
    Column("id", Oid.INT4, -1, True), Column("a", Oid.TIMESTAMPTZ, -1, False), Column("b", Oid.DATE, -1, False),
)  # fmt: skip
RELATION = Relation(7, "public", "t", ReplicaIdentity.DEFAULT, COLUMNS)
ROW = ("1", "2024-01-01 12:00:00+00", "2024-01-05")


def us(text: str) -> int:
    found = moment(text)
    assert found is not None
    return found


def bound(*wheres: str, options: str = "edition: 3") -> BoundTable:
    """One plan for each condition."""
    plans = [
        compile_config(
            f"config: {{{options}}}\nstreams:\n  s: {{auto_subscribe: true, query: SELECT id FROM t WHERE {where}}}\n"
        ).plan
        for where in wheres
    ]
    found = bind(distinct(plans), "default", RELATION, TypeCatalog(), 3, KEYS)
    assert found is not None
    return found


def write(table: BoundTable, now: int, members: str) -> tuple[str, list[str], int | None]:
    """Members to store, the kinds of ops, and until when that is right."""
    ops: list[DraftOp] = []
    row = table.at(now).transform.write(members, None, "1", ROW, ops, {})
    assert not row.errors
    return row.memberships, [orjson.loads("{" + op.body.lstrip("{"))["op"] for op in ops], row.flip


def test_a_row_leaves_its_bucket_when_its_window_ends() -> None:
    table = bound("a > now() - interval '7 days'")
    end = us("2024-01-08 12:00:00")
    members, ops, flip = write(table, us("2024-01-02"), "")
    assert (ops, flip) == (["PUT"], end)
    assert write(table, end - 1, members) == (members, [], end)
    assert write(table, end, members) == ("", ["REMOVE"], None)


def test_a_row_comes_when_its_window_begins() -> None:
    table = bound("b <= current_date")
    assert write(table, us("2024-01-04 23:00:00"), "") == ("", [], us("2024-01-05"))
    assert write(table, us("2024-01-05"), "")[1:] == (["PUT"], None)


def test_with_several_plans_the_first_flip_counts() -> None:
    table = bound("a > now() - interval '7 days'", "b > now()", "id = 1")
    members, ops, flip = write(table, us("2024-01-02"), "")
    assert (ops, flip) == (["PUT", "PUT", "PUT"], us("2024-01-05"))
    members, ops, flip = write(table, us("2024-01-05"), members)
    assert (ops, flip) == (["REMOVE"], us("2024-01-08 12:00:00"))
    assert write(table, us("2024-01-09"), members)[1:] == (["REMOVE"], None)


def test_memberships_are_those_of_a_time() -> None:
    table = bound("a > now() - interval '7 days'")
    assert len(table.at(us("2024-01-02")).memberships(ROW, "1")) == 1
    assert table.at(us("2024-01-02")).at(us("2024-02-01")).memberships(ROW, "1") == set()


def test_digits_that_devices_do_not_get_do_not_count() -> None:
    row = ("1", "1970-01-01 00:00:00.999999+00", None)
    table = bound("a > now()", options="edition: 3, timestamp_max_precision: seconds")
    assert table.at(0).transform.evaluate(row, "1").puts == []
    assert bound("a > now()").at(0).transform.evaluate(row, "1").flip == 999_999


def test_rules_without_the_time_have_no_other_program() -> None:
    table = bound("b IS NULL")
    assert not table.has_clock
    assert table.at(DAY) is table
    assert bound("a > now()").has_clock
