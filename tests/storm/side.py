"""One of the services in a life: its setup, the device that follows it, and how both are judged."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil

from tests.storm.changes import Changes
from tests.storm.ledger import Ledger, differences
from tests.storm.plan import Plan
from tests.storm.setup import StormSetup
from tests.storm.tables import KINDS, LEDGER, USERS, shown_to
from tests.storm.watcher import Device, Watcher
from tests.storm.writers import Log, Writer
from tests.support.fix_service import token_for
from tests.support.many_devices import ManyDevices, digest
from tests.support.store_checker import problems

PACE = 0.015
_HEAVY_PACE = 0.2  # some 20 changes of large rows a second
_WRITER_SECONDS = 180.0
_DEVICES_SECONDS = 300.0


class StormFailed(AssertionError):
    """What a device saw, or the store has, is not what the source had."""


class Side:
    """`seed` is of all that happens on this side; `ledger` is that of the round."""

    def __init__(self, setup: StormSetup, seed: str, plan: Plan, log: Log) -> None:
        self.setup = setup
        self._seed = seed
        self._plan = plan
        self._log = log
        self._changes = Changes(setup.source.dsn, random.Random(f"{seed} changes"), log, many=plan.many > 0)
        self.done = self._changes.done
        self.ledger = Ledger("")
        self.writers: list[Writer] = []
        self._own = ExitStack()
        self._many: ManyDevices | None = None

    def close(self) -> None:
        """End what follows the service."""
        self._own.close()

    def begin(self) -> None:
        """Lay the tables out and read them for the first time."""
        self.setup.lay_out(many=self._plan.many, heavy=self._plan.heavy > 0)
        self.setup.start()
        if self._plan.devices:
            tokens = [token_for(USERS[number % len(USERS)], 24 * 3600) for number in range(self._plan.devices)]
            endpoint = self._own.enter_context(self.setup.endpoint())
            self._many = self._own.enter_context(ManyDevices(self.setup.folder / "devices", endpoint, tokens))
            self._many.open()
            self._many.connect()
        self._device = Device(self.setup.deployment.reader)
        self._base, self._versions = self.setup.truth()

    def change(self) -> None:
        """Change a table."""
        self._changes.make(self.ledger)

    @contextmanager
    def round(self, number: int) -> Iterator[None]:
        """Writers write and a device looks, until what is done meanwhile is over and the store is quiet."""
        self.ledger = Ledger(f"{number}.")
        self.writers = self._new_writers(number)
        watcher = Watcher(self._device, self.ledger)
        watcher.start()
        try:
            for writer in self.writers:
                writer.start()
            yield
            for writer in self.writers:
                writer.join(_WRITER_SECONDS)
                if writer.failure is not None:
                    raise writer.failure
                assert not writer.is_alive(), f"{writer.name} hangs"
            self._log("quiet")
            self.setup.settle()
            self._log("settled")
        finally:
            watcher.end()
        if watcher.failure is not None:
            raise watcher.failure

    def _new_writers(self, number: int) -> list[Writer]:
        published = self.setup.published()
        paces = [(self._plan.transactions, PACE, False)] * self._plan.writers
        paces += [(self._plan.heavy, _HEAVY_PACE, True)] * (self._plan.heavy > 0)
        return [
            Writer(
                f"{number}.{place}",
                f"{self._seed} {number} {place}",
                self.setup.source.dsn,
                count,
                self.ledger,
                published,
                self._log,
                pace,
                heavy=heavy,
            )
            for place, (count, pace, heavy) in enumerate(paces)
        ]

    @property
    def tried(self) -> int:
        """How many transactions the writers have behind them."""
        return sum(writer.tried for writer in self.writers)

    def judge(self) -> None:
        """All that the device saw in the round was so. Raises StormFailed."""
        self._log(f"{len(self.ledger.sights)} checkpoints, {len(self.ledger.transactions)} transactions")
        self._fail_on(self.ledger.judge(self._base), "a checkpoint is not a state that the source had")
        self._fail_on(self.ledger.judge_versions(self._versions), "a device had what it was not given")

    def agree(self) -> None:
        """Devices, those that stayed and new ones, show what the source has, and the store is whole."""
        self._base, self._versions = self.setup.truth()
        for device, what in ((self._device, "the device"), (Device(self.setup.deployment.reader), "a new device")):
            shown = device.complete()
            assert shown is not None
            for user in USERS:
                wanted = shown_to(user, self._base, self._base)
                seen = {row: count for row, count in shown[user].items() if row[0] in KINDS}
                self._fail_on(differences(wanted, seen), f"{what} of {user} does not show what the source has")
        if self._many is not None:
            self._agree_all(self._many)
        self._fail_on(problems(self.setup.deployment.address), "the store contradicts itself")
        self.setup.source.execute(f"delete from {LEDGER}")

    def _agree_all(self, devices: ManyDevices) -> None:
        """Wait until each of the many devices shows what the source has."""
        wanted = [shown_to(user, self._base, self._base) for user in USERS]
        short = [digest(each.elements()) for each in wanted]
        users = [number % len(USERS) for number in range(self._plan.devices)]
        deadline = time.monotonic() + _DEVICES_SECONDS
        while (found := devices.digests(KINDS)) != [short[user] for user in users] and time.monotonic() < deadline:
            time.sleep(0.2)
        for number, user in enumerate(users):
            if found[number] != short[user]:
                seen = Counter(devices.rows(number, KINDS))
                self._fail_on(differences(wanted[user], seen), f"device {number} does not show what the source has")
        process = psutil.Process(devices.pid)
        taken = process.cpu_times()
        self._log(
            f"{len(users)} devices agree: {process.memory_info().rss / 1e6:.0f} MB,"
            f" {taken.user + taken.system:.1f} s of CPU so far"
        )

    def _fail_on(self, found: list[str], what: str) -> None:
        if found:
            text = "\n  ".join([f"seed {self._seed}: {what}", *found])
            self._log(text)
            raise StormFailed(text)
