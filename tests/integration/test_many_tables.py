"""Sources of many tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.fix_headwater import Deployment
    from tests.support.fix_postgres import SourceDb

CONFIG = """
config: {edition: 3}
streams:
  parts:
    auto_subscribe: true
    query: SELECT * FROM "part_%"
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("tables", [20, pytest.param(500, marks=pytest.mark.long)])
def test_a_transaction_that_touches_many_tables(
    deploy: Callable[..., Deployment], source_db: SourceDb, tables: int
) -> None:
    names = [f"part_{number}" for number in range(tables)]
    source_db.execute(";".join(f"create table {name} (id text primary key, n int)" for name in names))
    source_db.execute(f"insert into {names[7]} values ('kept', 1)")
    deployment = deploy(CONFIG)
    deployment.patience = 600.0
    deployment.start()
    assert deployment.rows("a") == {(names[7], "kept"): {"id": "kept", "n": 1}}
    ops = deployment.op_count()
    each = "insert into {0} values ('a', {1}), ('b', {1}), ('c', {1}); update {0} set n = n + 1 where id = 'b';"
    again = "delete from {0} where id = 'c';"
    statements = [each.format(*pair) for pair in zip(names, range(tables), strict=True)]
    statements += [again.format(name) for name in reversed(names)]
    source_db.execute(f"begin; {''.join(statements)} truncate {names[3]}; alter table {names[4]} add v int; commit")
    rows = deployment.rows("a")
    expected = {(name, "a"): {"id": "a", "n": n} for n, name in enumerate(names) if n not in {3, 4}}
    expected |= {(name, "b"): {"id": "b", "n": n + 1} for n, name in enumerate(names) if n not in {3, 4}}
    expected |= {(names[7], "kept"): {"id": "kept", "n": 1}}
    assert {key: row for key, row in rows.items() if key[0] != names[4]} == expected
    assert {key for key in rows if key[0] == names[4]} == {(names[4], "a"), (names[4], "b")}
    assert Counter(record.kind for record in deployment.bulk_records())["snapshot"] == 1
    assert deployment.op_count() - ops <= 2 * tables + 2  # what was in the table that was emptied goes again
    deployment.close()
    assert deployment.problems() == []
