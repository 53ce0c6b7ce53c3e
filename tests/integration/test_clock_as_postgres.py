"""Comparisons with the current time give what Postgres gives, and change when Postgres' answer changes."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest

from headwater.bulk.bound_table import bind
from headwater.decode.types import Oid, TypeCatalog
from headwater.oplog.change import Column, Relation, ReplicaIdentity
from headwater.oplog.keys import StoreKeys
from headwater_rules.compiler.compile import compile_config
from tests.support.fix_postgres import SourceDb

TYPES = {"a": ("timestamptz", Oid.TIMESTAMPTZ), "b": ("timestamp", Oid.TIMESTAMP), "c": ("date", Oid.DATE)}
VALUES = (
    "2023-02-28 12:00", "2024-02-28 23:59:59.999999", "2024-02-29", "2024-02-29 12:00:00.000001", "2024-03-01",
    "2024-03-30 01:00", "2024-03-31 02:30", "2024-12-31 23:00", "2025-01-31", "infinity", "-infinity",
)  # fmt: skip
NOWS = (
    "2023-03-28 06:00", "2023-03-31 12:00", "2024-01-31 01:00", "2024-02-29", "2024-03-29 12:00", "2024-03-31 02:30",
    "2025-02-28 23:00",
)  # fmt: skip
WHERES = (
    "{} > now() - interval '7 days'",
    "{} >= now() - interval '1 month'",
    "{} < now() - interval '1 mon -1 day 02:30'",
    "now() <= {} + interval '1 year 1 day'",
    "{} - interval '1 month' > now() + interval '1 month 36 hours'",
    "{} BETWEEN now() - interval '3 weeks' AND now()",
    "now() BETWEEN {} AND {} + interval '90 minutes'",
    "{} >= current_date",
    "{} < current_date - 7",
    "{} <= current_date + interval '1 month'",
    "{} > now()::date - interval '12 hours'",
    "NOT ({} > now() + '1 month'::interval)",
)
MICROS = "(extract(epoch from n)::numeric * 1000000)::bigint"


@pytest.mark.parametrize("column", TYPES)
@pytest.mark.parametrize("where", WHERES)
def test_as_postgres(source_db: SourceDb, column: str, where: str) -> None:
    kind, oid = TYPES[column]
    condition = where.replace("{}", column)
    plan = compile_config(
        "config: {edition: 3}\nstreams:\n  s:\n    auto_subscribe: true\n    queries:\n"
        f"      - |\n        SELECT id FROM t WHERE {condition}\n"
    ).plan
    columns = (Column("id", Oid.INT4, -1, True), Column(column, oid, -1, False))
    relation = Relation(7, "public", "t", ReplicaIdentity.DEFAULT, columns)
    table = bind([plan], "default", relation, TypeCatalog(), 3, StoreKeys(b"secret"))
    assert table is not None

    at_n = condition.replace("now()", "n").replace("current_date", "n::date")
    cases = f"unnest(%s::{kind}[], %s::timestamptz[]) as cases ({column}, n)"
    with psycopg.connect(source_db.dsn, options="-c TimeZone=UTC -c DateStyle=ISO") as connection:

        def asked(values: Sequence[str], nows: Sequence[object]) -> list[tuple[str, int, bool]]:
            """Each value as Postgres prints it, the time in microseconds, and what Postgres says."""
            query = f"select {column}::text, {MICROS}, {at_n} from {cases}"
            return connection.execute(query.encode(), [list(values), list(nows)]).fetchall()

        pairs = [(value, now) for value in VALUES for now in NOWS]
        flips: list[tuple[str, int, bool]] = []
        for text, now, expected in asked(*zip(*pairs, strict=True)):
            result = table.at(now).transform.evaluate(("1", text), "1")
            assert (bool(result.puts), result.errors) == (expected, []), f"{text} at {now}"
            if result.flip is not None and "infinity" not in text:  # which is the end of the year 9999 here
                flips += [(text, result.flip - 1, expected), (text, result.flip, expected)]
        assert flips
        times = connection.execute(
            "select array(select to_timestamp(s / 1000000) + (s %% 1000000) * interval '1 microsecond'"
            " from unnest(%s::bigint[]) with ordinality as t (s, i) order by i)",
            [[flip for _, flip, _ in flips]],
        ).fetchall()[0][0]
        answers = asked([text for text, _, _ in flips], times)
        assert [now for _, now, _ in answers] == [flip for _, flip, _ in flips]
        before, after = answers[::2], answers[1::2]
        assert [holds for _, _, holds in before] == [expected for _, _, expected in flips[::2]]
        if "BETWEEN" not in where:  # of which one side may change without the other
            assert [holds for _, _, holds in after] == [not expected for _, _, expected in flips[::2]]
