"""A storm in small: random changes at once, and devices never see what was not so."""

from __future__ import annotations

import pytest

from tests.storm.plan import Plan
from tests.support.fix_storm import Storm

pytestmark = pytest.mark.timeout(900)


def test_storm_of_writers(storm: Storm) -> None:
    tally = storm(1, Plan(transactions=80), rounds=2)
    assert tally.transactions > 100
    assert tally.sights > 10


@pytest.mark.parametrize("seed", [102, pytest.param(104, marks=pytest.mark.long)])
def test_storm_of_table_changes(storm: Storm, seed: int) -> None:
    tally = storm(seed, Plan(transactions=40, changes=3), rounds=2)
    assert tally.rounds == 2


@pytest.mark.long
def test_storm_of_two_services(storm: Storm) -> None:
    plan = Plan(transactions=20, changes=2, heavy=2, services=2, storage="postgres")
    tally = storm(3, plan, rounds=1)
    assert tally.transactions > 40


@pytest.mark.long
def test_storm_of_three_sources(storm: Storm) -> None:
    tally = storm(6, Plan(transactions=20, changes=1, sources=3, away=1.0), rounds=2)
    assert tally.kills["source restored from a backup"] == tally.kills["source away"] == 1
    assert tally.calm > 0


@pytest.mark.long
def test_storm_with_fifty_devices(storm: Storm) -> None:
    tally = storm(5, Plan(transactions=40, changes=2, devices=50), rounds=2)
    assert tally.rounds == 2
