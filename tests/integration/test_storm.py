"""A storm in small: random changes and deaths at once, and devices never see what was not so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.pipeline.jobs import BulkJobs
from tests.storm.life import ROUGH, Life, Plan, Tally
from tests.storm.world import World

pytestmark = pytest.mark.timeout(900)

Storm = Callable[..., Tally]


@pytest.fixture
def storm(postgres_with: Callable[..., EmbeddedPostgres], bulk: BulkJobs, tmp_path: Path) -> Storm:
    """`storm(seed, plan, rounds)` lives one life on a server of its own. Its log is shown where it fails."""

    def rage(seed: int, plan: Plan, rounds: int) -> Tally:
        world = World(postgres_with(), tmp_path, bulk, f"storm_{seed}")
        with _life(world, seed, plan, tmp_path / "log.txt") as life:
            life.begin()
            for _ in range(rounds):
                life.round()
        return life.tally

    return rage


@contextmanager
def _life(world: World, seed: int, plan: Plan, log: Path) -> Iterator[Life]:
    life = Life(world, seed, plan, log)
    try:
        yield life
    finally:
        life.close()
        print(log.read_text(encoding="utf-8"))
        world.close()


def test_writers_at_once(storm: Storm) -> None:
    tally = storm(1, Plan(transactions=80), rounds=2)
    assert tally.transactions > 100
    assert tally.sights > 10


@pytest.mark.parametrize("seed", [102, pytest.param(104, marks=pytest.mark.long)])
def test_tables_change_under_the_writers(storm: Storm, seed: int) -> None:
    tally = storm(seed, Plan(transactions=40, changes=3), rounds=2)
    assert tally.rounds == 2


@pytest.mark.spark
def test_parts_die_under_the_writers(storm: Storm) -> None:
    tally = storm(200, Plan(transactions=40, kills=3), rounds=2)
    assert tally.done.total() == 6


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", [100, 101, 300, 310])
def test_all_of_it_for_some_minutes(storm: Storm, seed: int) -> None:
    tally = storm(seed, ROUGH, rounds=4)
    assert tally.rounds == 4
