"""A database with the demo's tables and a little sample data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from headwater.dev.sample import FEWEST_ROWS, fill, make_policies

if TYPE_CHECKING:  # plugins must not import each other: pytest rewrites each as it loads it
    from tests.support.fix_postgres import SourceDb


@pytest.fixture
def demo_db(source_db: SourceDb) -> SourceDb:
    """The test's own database, filled as `headwater dev` fills one."""
    with psycopg.connect(source_db.dsn, autocommit=True) as conn:
        assert fill(conn, FEWEST_ROWS)
        make_policies(conn)
    return source_db
