"""Storms that live inside the test's process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.pipeline.jobs import BulkJobs
from tests.storm.life import Life, Tally, setups_of
from tests.storm.plan import Plan
from tests.storm.setup import StormSetup

Storm = Callable[..., Tally]


@pytest.fixture
def storm(postgres_with: Callable[..., EmbeddedPostgres], bulk: BulkJobs, tmp_path: Path) -> Storm:
    """`storm(seed, plan, rounds)` lives one life on a server of its own. Its log is shown where it fails."""

    def rage(seed: int, plan: Plan, rounds: int) -> Tally:
        with (
            setups_of(postgres_with, tmp_path, bulk, f"storm_{seed}", plan) as services,
            _life(services, seed, plan, tmp_path / "log.txt") as life,
        ):
            life.begin()
            for _ in range(rounds):
                life.round()
        return life.tally

    return rage


@contextmanager
def _life(services: Sequence[Sequence[StormSetup]], seed: int, plan: Plan, log: Path) -> Iterator[Life]:
    life = Life(services, seed, plan, log)
    try:
        yield life
    finally:
        life.close()
        print(log.read_text(encoding="utf-8"))
