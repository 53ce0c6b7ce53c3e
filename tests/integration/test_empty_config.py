"""A config that syncs nothing runs like any other, until one that syncs something takes its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.fix_headwater import Deployment
    from tests.support.fix_postgres import SourceDb


@pytest.mark.parametrize(
    "config",
    ["config: {edition: 3}\nstreams: {}\n", "bucket_definitions: {}\n", "bucket_definitions: {b: {data: []}}\n"],
)
def test_a_config_without_queries(source_db: SourceDb, deploy: Callable[..., Deployment], config: str) -> None:
    source_db.execute("create table notes (id int primary key); insert into notes values (1)")
    deployment = deploy(config).start()

    source_db.execute("insert into notes values (2)")

    assert deployment.rows("u") == {}
