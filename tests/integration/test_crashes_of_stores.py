"""Whatever a store is doing when its process dies: nothing of it is half there, nothing that was told is lost, and
devices converge."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field

import pytest

from headwater.storage.address import StoreAddress
from headwater.storage.contract.versions import VersionState
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter
from tests.support.fix_headwater import read_bucket
from tests.support.fix_processes import Launch, Running
from tests.support.fix_stores import LASTING, NewAddress
from tests.support.little_source import (
    SOURCE,
    expected_buckets,
    expected_lookups,
    rows_after,
    sides_of,
)
from tests.support.model_device import ModelBucket
from tests.support.store_checker import problems
from tests.support.store_life import FAVOURITES, LSN_EACH, MIGRATION_POINTS, write_address


@dataclass
class Witness:
    """Sees a store before and after its deaths: `device` stays the same all the time."""

    address: StoreAddress
    launch_module: Launch
    device: dict[str, ModelBucket] = field(default_factory=dict)
    reached: int = 0
    checkpoint: int = 0

    def dies(self, failpoint: str, favourite: str, seed: int) -> Running:
        """A process works on the store until it dies there."""
        arguments = write_address(self.address), str(seed), favourite
        running = self.launch_module("tests.support.store_life", *arguments, failpoint=failpoint)
        running.died_at(failpoint.partition(":")[0])
        told = [line.split()[1] for line in running.output.splitlines() if line.startswith("reached ")]
        self.reached = max(self.reached, *map(int, told), 0)
        return running

    def check(self) -> None:
        """The store is whole, holds what was told to be there, and the device gets to it."""
        with closing(open_store(self.address).open_writer()) as store:
            assert problems(self.address) == []
            state = store.source_state(SOURCE)
            number = 0 if state is None else state.lsn // LSN_EACH
            assert number >= self.reached, "what was told to be in the store is gone"
            if state is not None:
                self._check_contents(store, number)

    def _check_contents(self, store: StoreWriter, number: int) -> None:
        (active,) = [each for each in store.versions() if each.state is VersionState.ACTIVE]
        rows = rows_after(number)
        served = expected_buckets(sides_of(active.yaml), rows)
        with closing(open_store(self.address).open_reader()) as reader:
            with reader.snapshot() as snapshot:
                assert snapshot is not None
                assert snapshot.config.yaml == active.yaml
                assert snapshot.checkpoint.op_id >= self.checkpoint, "the checkpoint went back"
                self.checkpoint = snapshot.checkpoint.op_id
                expected = expected_buckets({*store.complete_definitions(), *sides_of(active.yaml)}, rows)
                totals = snapshot.totals(list(expected))
                outputs = expected_lookups(sides_of(active.yaml), rows)
                found = snapshot.lookups(list(outputs))
            assert {key: set(given) for key, given in found.items()} == outputs
            self.device = {name: self.device.get(name, ModelBucket()) for name in served}
            for name in served:
                if totals[name].count == 0:  # forgotten since: a device finds its sum wrong and begins again
                    self.device[name] = ModelBucket()
                read_bucket(reader, name, self.checkpoint, self.device[name])
                assert self.device[name].checksum == totals[name].checksum, name
                assert shown(self.device[name]) == served[name]
            for name, content in expected.items():
                fresh = read_bucket(reader, name, self.checkpoint)
                assert fresh.checksum == totals[name].checksum, name
                assert shown(fresh) == content


def shown(bucket: ModelBucket) -> dict[tuple[str, str], str]:
    """Data by table and id; each stands once."""
    found = {(table, object_id): data for (table, object_id, _), (_, data, _) in bucket.rows.items()}
    assert len(found) == len(bucket.rows)
    return found


def live_and_die(witness: Witness, seed: int, points: list[str]) -> Counter[str]:
    """A store's life with a death at each of these points. Returns how often it died at each."""
    moments = random.Random(seed)
    died: Counter[str] = Counter()
    for number, point in enumerate(points):
        failpoint = f"{point}:{moments.randrange(1, 6)}"
        witness.dies(failpoint, FAVOURITES[point], seed * 1_000 + number)
        died[point] += 1
        witness.check()
    return died


@pytest.mark.parametrize("new_address", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)], indirect=True)
@pytest.mark.timeout(600)
def test_a_store_dies_once_at_every_point(new_address: NewAddress, launch_module: Launch) -> None:
    points = [*FAVOURITES]
    random.Random(1).shuffle(points)
    died = live_and_die(Witness(new_address(), launch_module), 1, points)
    assert died == dict.fromkeys(FAVOURITES, 1)


@LASTING
def test_a_new_store_dies_before_it_is_made(new_address: NewAddress, launch_module: Launch) -> None:
    witness = Witness(new_address(), launch_module)
    for point in MIGRATION_POINTS:
        witness.dies(point, "flush", 1)
    witness.dies("publish.after_commit", "flush", 1)
    witness.check()


@LASTING
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 9))
def test_a_store_dies_over_and_over(new_address: NewAddress, launch_module: Launch, seed: int) -> None:
    points = [*FAVOURITES, *FAVOURITES]
    random.Random(seed).shuffle(points)
    died = live_and_die(Witness(new_address(), launch_module), seed, points)
    assert died == dict.fromkeys(FAVOURITES, 2)
