"""One of the services in a life: its sources, and the devices that follow them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import psutil

from tests.storm.ledger import differences
from tests.storm.plan import Plan
from tests.storm.probe import Probe
from tests.storm.setup import SETTLE_SECONDS
from tests.storm.side import Side
from tests.storm.sources import faults_across
from tests.storm.tables import SHOWN, USERS, shown_to, with_joined
from tests.storm.watcher import Device, Watcher
from tests.storm.writers import Log
from tests.support.fix_service import token_for
from tests.support.many_devices import ManyDevices, digest
from tests.support.store_checker import problems
from tests.support.waiting import wait_until

_DEVICES_SECONDS = 300.0
_REST_SECONDS = 90.0


class Service:
    """`probe` is there where it has several sources. `restored` are those whose log went back."""

    def __init__(self, sides: Sequence[Side], plan: Plan, log: Log) -> None:
        self.sides = sides
        self.setup = sides[0].setup
        self._names = tuple(side.name for side in sides)
        self._plan = plan
        self._log = log
        self._own = ExitStack()
        self._many: ManyDevices | None = None
        self.probe: Probe | None = None
        self.restored: set[str] = set()

    def close(self) -> None:
        """End what follows the service."""
        self._own.close()

    def begin(self) -> None:
        """Lay the tables out and read them for the first time."""
        for side in self.sides:
            side.lay_out()
        for side in self.sides:
            side.setup.start()
        if self._plan.devices:
            tokens = [token_for(USERS[number % len(USERS)], 24 * 3600) for number in range(self._plan.devices)]
            endpoint = self._own.enter_context(self.setup.endpoint())
            self._many = self._own.enter_context(ManyDevices(self.setup.folder / "devices", endpoint, tokens))
            self._many.open()
            self._many.connect()
        if len(self.sides) > 1:
            self.probe = self._own.enter_context(Probe(self._own.enter_context(self.setup.endpoint()), self._log))
        self._device = Device(self.setup.deployment.reader, self._names)
        for side in self.sides:
            side.look()

    @contextmanager
    def round(
        self, number: int, *, share: float = 1.0, away: Side | None = None, within: float = SETTLE_SECONDS
    ) -> Iterator[None]:
        """Writers write, each so much of what the plan says, and a device looks, until what is done meanwhile is over
        and the store is quiet, which is to take so many seconds. Nobody writes to a source that is away."""
        there = [side for side in self.sides if side is not away]
        for side in self.sides:
            side.begin_round(number, share=0.0 if side is away else share)
        watcher = Watcher(self._device, {side.name: side.ledger for side in self.sides})
        watcher.start()
        if self.probe:
            self.probe.resume(there)
        try:
            for side in there:
                for writer in side.writers:
                    writer.start()
            yield
            for side in there:
                side.wait_for_writers()
            if self.probe:
                self.probe.pause()
            self._log("quiet")
            for side in there:
                side.setup.settle(within)
            self._log("settled")
        finally:
            watcher.end()
            if self.probe:
                self.probe.pause()
        if watcher.failure is not None:
            raise watcher.failure
        self.sides[0].fail_on(watcher.faults[:20], "a checkpoint does not fit together")
        if self.probe:
            self.probe.judge()

    @property
    def probed(self) -> bool:
        """Whether the probe had a row back in this round, of each source that is there."""
        there = (side.name for side in self.sides if side.writers)
        return self.probe is not None and all(name in self.probe.waits for name in there)

    def agree(self, away: Side | None = None) -> None:
        """Devices, those that stayed and new ones, show what the sources have, and the store is whole. Of a source
        that is away, they show what it had."""
        for side in self.sides:
            if side is not away:
                side.look()
        there = [side for side in self.sides if side is not away]
        wait_until(lambda: self._is_at_rest(there), "what time brings by itself", _REST_SECONDS)
        newcomer = Device(self.setup.deployment.reader, self._names)
        for device, what in ((self._device, "the device"), (newcomer, "a new device")):
            shown = device.complete()
            assert shown is not None
            for side in self.sides:
                side.agree(shown[side.name], what)
                if side in there:
                    side.fail_on(side.unrest(shown[side.name]), f"{what} does not show what time brought")
            self.sides[0].fail_on(list(faults_across(shown)), f"{what} shows what does not fit together")
        if self._many is not None:
            self._agree_all(self._many)
        self.sides[0].fail_on(problems(self.setup.deployment.address, self.restored), "the store contradicts itself")
        for side in self.sides:
            if side is not away:
                side.forget_transactions()

    def _is_at_rest(self, there: Sequence[Side]) -> bool:
        shown = self._device.complete()
        return shown is not None and not any(side.unrest(shown[side.name]) for side in there)

    def _agree_all(self, devices: ManyDevices) -> None:
        """Wait until each of the many devices shows what the source has."""
        (side,) = self.sides
        wanted = [shown_to(user, side.base, with_joined(side.base)) for user in USERS]
        short = [digest(each.elements()) for each in wanted]
        users = [number % len(USERS) for number in range(self._plan.devices)]
        deadline = time.monotonic() + _DEVICES_SECONDS
        while (found := devices.digests(SHOWN)) != [short[user] for user in users] and time.monotonic() < deadline:
            time.sleep(0.2)
        for number, user in enumerate(users):
            if found[number] != short[user]:
                seen = Counter(devices.rows(number, SHOWN))
                side.fail_on(differences(wanted[user], seen), f"device {number} does not show what the source has")
        process = psutil.Process(devices.pid)
        taken = process.cpu_times()
        self._log(
            f"{len(users)} devices agree: {process.memory_info().rss / 1e6:.0f} MB,"
            f" {taken.user + taken.system:.1f} s of CPU so far"
        )
