"""A storm in which any part dies, Spark too, and devices never see what was not so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from headwater.errors import HeadwaterError
from headwater.pipeline.spark.engine import SparkEngine
from headwater.pipeline.spark.session import Spark
from tests.storm.plan import ROUGH, Plan, varied
from tests.support.fix_storm import Storm

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Nothing:
    """A task that any Spark can do."""

    def run(self, job: None, number: int, attempt: str) -> bool:
        return True


@pytest.fixture(autouse=True)
def _whole_again(spark: Spark) -> Iterator[None]:
    """The next test is not the one that finds out what died."""
    yield
    for _ in range(3):
        with suppress(HeadwaterError), SparkEngine(spark).run(None, "look") as run:
            assert run.tasks([Nothing()] * 4) == [True] * 4
            return


@pytest.mark.long
def test_parts_die_under_the_writers(storm: Storm) -> None:
    tally = storm(200, Plan(transactions=40, kills=3), rounds=2)
    assert tally.kills.total() == 6


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", [100, 101, 300, 310])
def test_all_of_it_for_some_minutes(storm: Storm, seed: int) -> None:
    tally = storm(seed, varied(ROUGH, seed), rounds=4)
    assert tally.rounds == 4
