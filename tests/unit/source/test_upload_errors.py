"""Who can mend an error of Postgres, by its SQLSTATE alone. Where more is known, see the integration tests."""

from __future__ import annotations

import psycopg
import pytest

from headwater.source.upload.errors import Mender, mender_of

USERS = "22001 22003 22012 22023 22P02 23000 23001 23503 23505 23P01 40002 44000 54000 54023 P0001 P0002 P0003"
OPERATORS = (
    "03000 09000 0A000 0L000 0Z000 20000 21000 2200H 23502 23514 24000 25001 26000 27000 28000 2B000 2F005 34000 38000"
    " 39P01 3B000 3D000 3F000 42501 42601 42703 42704 42804 42883 428C9 42P01 42P17 54001 55000 55P02 55P04 58P01 F0000"
    " HV000 P0004 XX000 XX001 XX002"
)
PASSING = (
    "08000 08006 08P01 25006 25P03 25P04 40000 40001 40003 40P01 53000 53100 53200 53300 55006 55P03 57000 57014 57P01"
    " 57P02 57P03 57P05 58000 58030 72000"
)


@pytest.mark.parametrize(
    ("states", "mender"), [(USERS, Mender.USER), (OPERATORS, Mender.OPERATOR), (PASSING, Mender.NOBODY)]
)
def test_mender_of(states: str, mender: Mender) -> None:
    found = {state: mender_of(psycopg.errors.lookup(state)()) for state in states.split()}
    assert found == dict.fromkeys(found, mender)


def test_mender_of_other_errors() -> None:
    class Custom(psycopg.DatabaseError):
        sqlstate = "PT403"

    assert mender_of(Custom()) is Mender.USER
    assert mender_of(psycopg.OperationalError("the connection is lost")) is Mender.NOBODY
