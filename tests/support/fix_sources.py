"""Several sources in one store, each with a replicator in the test's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.pipeline.jobs import BulkJobs
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.versions import Origin, VersionState
from headwater.storage.sql.writer import StoreWriter
from tests.support.fix_headwater import Deployment
from tests.support.waiting import wait_until

if TYPE_CHECKING:  # plugins must not import each other: pytest rewrites each as it loads it
    from tests.support.fix_postgres import SourceDb


class Sources:
    """The sources of one configuration, by name, with one store. Each is a `Deployment` with a database of its own on
    the session's server. `sources["a"].source` is the database of the source `a`."""

    def __init__(self, make: Callable[[str, str | None, str], Deployment], yaml: str) -> None:
        self._make = make
        self._yaml = yaml
        self._all: dict[str, Deployment] = {}

    def __getitem__(self, name: str) -> Deployment:
        return self._all[name]

    def __iter__(self) -> Iterator[Deployment]:
        return iter(self._all.values())

    @property
    def any(self) -> Deployment:
        """One to read the store by."""
        return next(iter(self))

    def add(self, name: str, tables: str = "") -> Deployment:
        """A source called `tag` or `tag/shard`, with these tables. All others learn of it when they start again."""
        tag, _, shard = name.partition("/")
        made = self._make(tag, shard or None, self._yaml)
        if tables:
            made.source.execute(tables)
        self._all[name] = made
        self._introduce()
        return made

    def remove(self, name: str) -> Deployment:
        """Stop a source and leave it out from now on, as a configuration does that does not name it any more."""
        gone = self._all.pop(name)
        gone.stop()
        self._introduce()
        return gone

    def _introduce(self) -> None:
        for each in self:
            each.peers = {other.name: other.tag for other in self}

    def start(self) -> Sources:
        """Start those that do not run, all at once, and wait until each follows its stream."""
        idle = [each for each in self if not each.running]
        for each in idle:
            each.start(wait=False)
        for each in idle:
            each.wait_until_following()
        return self

    def stop(self) -> None:
        for each in self:
            each.stop()

    def close(self) -> None:
        for each in self:
            each.close()

    def restart(self) -> None:
        """Stop all and start them again, as a service does that starts with another configuration."""
        self.stop()
        self.start()

    def caught_up(self) -> None:
        """Wait until clients can see every commit made so far in the sources that run."""
        for each in self:
            if each.running:
                each.caught_up()

    def rows(self, user: str, **claims: object) -> dict[tuple[str, str], dict[str, object]]:
        """What a new device of this user shows, after everything committed so far."""
        self.caught_up()
        return self.any.rows(user, **claims)

    def deploy(self, yaml: str) -> int:
        """Deploy another sync config without waiting for it. Returns the id of the version."""
        self._yaml = yaml
        for each in self:
            each.yaml = yaml
        with self.any.store() as store:
            return store.deploy(yaml, Origin.COMMAND).id

    def redeploy(self, yaml: str) -> int:
        """Deploy another sync config and wait until it is served. Returns the id of the version."""
        number = self.deploy(yaml)
        self.wait_for(lambda store: _state(store, number) is VersionState.ACTIVE, "the version to be served")
        return number

    def wait_for(self, condition: Callable[[StoreWriter], object], what: str) -> None:
        """Wait until the store satisfies a condition, while no replicator fails."""
        with self.any.store() as store:

            def holds() -> object:
                for each in self:
                    each.raise_failure()
                return condition(store)

            wait_until(holds, what)

    def state(self, version: int) -> VersionState:
        """The state of a version now."""
        with self.any.store() as store:
            return _state(store, version)

    def note(self, version: int) -> str:
        """What a version says of itself now."""
        with self.any.store() as store:
            return next(each for each in store.versions() if each.id == version).note


def _state(store: StoreWriter, version: int) -> VersionState:
    return next(each for each in store.versions() if each.id == version).state


NewSources = Callable[..., Sources]
"""`new_sources(yaml, {"a": TABLES, "b": TABLES})` makes two sources with these tables, and starts none of them yet."""


@pytest.fixture
def new_sources(
    new_source_db: Callable[[], SourceDb], bulk: BulkJobs, tmp_path: Path, on_storage: Callable[[], PostgresAddress]
) -> Iterator[NewSources]:
    """See `NewSources`. After the test, the store has to be whole."""
    with ExitStack() as stack:

        def make(yaml: str, tables: dict[str, str], *, on_postgres: bool = False, **changes: Any) -> Sources:
            storage = on_storage() if on_postgres else None
            given = {"bulk": bulk, "storage": storage, **changes}

            def one(tag: str, shard: str | None, yaml: str) -> Deployment:
                made = Deployment(new_source_db(), tmp_path / "store", yaml, tag=tag, shard=shard, **given)
                stack.callback(made.close_whole)
                return made

            sources = Sources(one, yaml)
            for name, text in tables.items():
                sources.add(name, text)
            stack.callback(sources.close)
            return sources

        yield make
