"""A run of the scaled set-up: acts in which something is worked on and something is killed, and what came of it."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import psycopg

from headwater.bulk.contract import JobKind
from headwater.cli.main import EXIT_AGAIN
from headwater.replication.status import from_json
from headwater.storage.contract.parts import BulkRecord
from headwater.storage.contract.versions import VersionState
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter
from tests.scaled.devices import Device
from tests.scaled.load import Beats, Writer, rules, schema
from tests.scaled.machines import ENDPOINTS, PATIENCE, REPLICATORS, WORKERS, Machines
from tests.support.command import command, headwater
from tests.support.processes import start
from tests.support.store_checker import problems
from tests.support.waiting import wait_until

_AFTER: Final = 3.0
"""How long an act goes on after all is well again, in seconds."""
_FOLLOWS: Final = "following the stream"
_SHAPES: Final = ("*", "id, owner, n, body, n % 7 AS week", "*, n + 1 AS next")
_COUNTED: Final = {1: "n %% 7 as week", 2: "n + 1 as next"}


@dataclass(frozen=True, slots=True)
class Gap:
    """What an act did to devices: seconds from a commit until the last device had it, at worst; in the middle; and
    until the act's work was done. `again` is from the kill until a commit made after it was with all devices."""

    what: str
    worst: float
    middle: float
    again: float | None
    work: float | None


@dataclass
class Run:
    """One run over machines that are up and have their Spark."""

    machines: Machines
    users: int
    rows: int
    writers: int
    pause: float
    say: Callable[[str], None] = print
    gaps: list[Gap] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    _stack: ExitStack = field(default_factory=ExitStack)
    _shape: int = 0
    _columns: int = 0

    # the run

    def begin(self) -> None:
        """The first snapshot, with the load already on."""
        machines = self.machines
        machines.execute(*schema(self.users, self.rows))
        machines.write_config(rules())
        self._beats = Beats(machines.source)
        self._writers = [Writer(machines.source, n, self.users, self.pause) for n in range(self.writers)]
        self._devices = [Device(f"u{n}", machines.endpoints, n % len(ENDPOINTS)) for n in range(self.users)]
        for thread in (self._beats, *self._writers):
            self._stack.callback(thread.end)
            thread.start()
        started = time.monotonic()
        for name in ENDPOINTS:
            machines.start_endpoint(name)
        for name in REPLICATORS:
            machines.start_replicator(name)
        self._store: StoreWriter = self._stack.enter_context(closing(open_store(machines.address).open_writer()))
        self._wait(lambda: self._follows() is not None, "the first snapshot")
        for device in self._devices:
            self._stack.callback(device.end)
            device.start()
        wait_until(lambda: self._all_heard(len(self._beats.committed)), "the devices", PATIENCE)
        self.say(
            f"first snapshot and first download: {time.monotonic() - started:.0f} s, {self._told(JobKind.SNAPSHOT)}"
        )

    def acts(self, until: float) -> None:
        """Act after act until that time on the monotonic clock; every act once at least."""
        acts = (
            self.resync_with_a_worker_killed,
            self.endpoint_killed,
            self.rule_edit_with_the_replicator_killed,
            self.store_crashed,
            self.master_killed,
            self.audit_with_a_worker_killed,
        )
        for number in itertools.count():
            if number >= len(acts) and time.monotonic() > until:
                return
            acts[number % len(acts)]()

    def end(self) -> None:
        """With the source quiet: all is compared. Raises AssertionError when anything is lost, or differs."""
        for writer in self._writers:
            writer.end()
        self._beats.end()
        count = len(self._beats.committed)
        wait_until(lambda: self._all_heard(count), "the last commit to be everywhere", PATIENCE)
        for device in self._devices:
            device.end()
            wanted, shown = self._wanted(device.user), device.rows()
            wrong = {key for key in wanted.keys() | shown.keys() if wanted.get(key) != shown.get(key)}
            assert not wrong, f"{device.user}: {len(wrong)} of {len(wanted)} rows differ, as {sorted(wrong)[:5]}"
        assert problems(self.machines.address) == []
        done = sum(writer.done for writer in self._writers)
        self.say(
            f"{count:,} beats and {done:,} transactions of {self.writers} writers: nothing lost; {self.users} devices"
            f" show what Postgres has, and the store does not contradict itself"
        )

    def close(self) -> None:
        """End what runs beside the machines. It may have failed to begin."""
        self._stack.close()

    # acts

    def resync_with_a_worker_killed(self) -> None:
        """Every row of the archive gets a value that the stream does not tell."""
        with self._act("re-sync of the archive, a Spark worker with its executor killed") as act:
            self._columns += 1
            before = len(self._records(JobKind.RESYNC))
            self.machines.execute(f"alter table archive add column extra{self._columns} int default {self._columns}")

            def compared() -> bool:
                compares = any(table.resync for table in self._store.tables("default"))
                return len(self._records(JobKind.RESYNC)) > before and not compares

            self._wait_for_work(compared)
            self._kill(WORKERS[self._columns % 2], act)
            self._wait(compared, "the re-sync")
            act.worked = time.monotonic()
            self.machines.start_worker(WORKERS[self._columns % 2])
        self.say(f"  {self._told(JobKind.RESYNC)}")

    def endpoint_killed(self) -> None:
        """Its devices go to the other one."""
        name = ENDPOINTS[self.killed["endpoint"] % 2]
        with self._act("an endpoint killed") as act:
            self._kill(name, act)
            self._wait_heard()
            self.machines.start_endpoint(name)

    def store_crashed(self) -> None:
        """Its Postgres recovers."""
        with self._act("the store's Postgres crashed and started again") as act:
            act.killed = self.machines.crash_store()

    def master_killed(self) -> None:
        """The one that is started in its place knows all, so the next act's work is done."""
        with self._act("Spark's master killed and started again") as act:
            self._kill("master", act)
            self._wait_heard()
            self.machines.start_master()

    def rule_edit_with_the_replicator_killed(self) -> None:
        """The standby finishes what the other began."""
        self._wait(lambda: self._follows() is not None, "a replicator")
        holder = self._follows()
        assert holder is not None
        apart = "on another machine" if self.machines.apart else "on the same machine"
        with self._act(f"reprocess after a rule edit, the replicator killed, its standby {apart}") as act:
            self._shape = (self._shape + 1) % len(_SHAPES)
            edited = self.machines.folder / "sync.yaml"
            edited.write_text(rules(_SHAPES[self._shape]), encoding="utf-8")
            done = headwater("rules", "deploy", "--no-wait", edited, "--config", self.machines.config, seconds=PATIENCE)
            assert done.code == 0, done

            def serves() -> bool:
                yaml = edited.read_text(encoding="utf-8")
                active = [each for each in self._store.versions() if each.state is VersionState.ACTIVE]
                return bool(active) and active[-1].yaml == yaml

            self._wait_for_work(serves)
            self._kill(holder, act)
            self._wait(serves, "the edited rules")
            act.worked = time.monotonic()
            self.machines.start_replicator(holder)
        self.say(f"  {self._told(JobKind.REPROCESS)}")

    def audit_with_a_worker_killed(self) -> None:
        """The audit finds nothing, and says so."""
        name = WORKERS[self.killed["worker"] % 2]
        with self._act("audit of everything, a Spark worker with its executor killed") as act:
            audit = start(command("audit", "--config", self.machines.config), self.machines.folder / "audit.log")
            self._wait_for_work(lambda: not audit.alive)
            self._kill(name, act)
            assert audit.wait(PATIENCE) == 0, audit.output
            act.worked = time.monotonic()
            self.machines.start_worker(name)

    # what is seen

    @contextmanager
    def _act(self, what: str) -> Iterator[_Act]:
        act = _Act(time.monotonic(), len(self._beats.committed))
        yield act
        self._wait_heard()
        time.sleep(_AFTER)  # for figures only: what comes late is seen, too
        self._wait_heard()
        delays = self._delays(act.beat, len(self._devices[0].client.heard))
        again = None if act.killed is None else self._again(act.killed)
        work = None if act.worked is None else act.worked - act.started
        self.gaps.append(Gap(what, max(delays), median(delays), again, work))
        self.say(f"{what}: the worst commit took {max(delays):.1f} s")

    def _delays(self, first: int, last: int) -> list[float]:
        """Of each beat, the seconds until the last device had it."""
        last = min(last, *(len(device.client.heard) for device in self._devices))
        return [
            max(device.client.heard[beat] for device in self._devices) - self._beats.committed[beat]
            for beat in range(first, last)
        ]

    def _again(self, killed: float) -> float:
        """Seconds from a kill until the first commit after it was with all devices."""
        beat = next(number for number, at in enumerate(self._beats.committed) if at >= killed)
        return max(device.client.heard[beat] for device in self._devices) - killed

    def _wait_heard(self) -> None:
        """Until all devices have what is committed by now."""
        count = len(self._beats.committed) + 1
        self._wait(lambda: self._all_heard(count), "the devices to hear")

    def _all_heard(self, count: int) -> bool:
        threads: list[Beats | Writer | Device] = [self._beats, *self._writers, *self._devices]
        for each in threads:
            if each.failure is not None:
                raise each.failure
        return all(len(device.client.heard) >= count for device in self._devices)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait while all that should live lives. What asks for it is started again, as a supervisor does."""
        wait_until(lambda: self._all_live() and condition(), what, PATIENCE)

    def _all_live(self) -> bool:
        for name in (*REPLICATORS, *ENDPOINTS, *WORKERS):
            running = self.machines.running(name)
            if name in REPLICATORS and running.process.poll() == EXIT_AGAIN:
                self.machines.start_replicator(name)
                continue
            assert running.alive or running.process.returncode < 0, f"{name} ended:\n{running.output}"
        return True

    def _follows(self) -> str | None:
        """The replicator that follows the stream."""
        holder = self.machines.holder()
        follows = holder is not None and _FOLLOWS in self.machines.running(holder).output
        return holder if follows else None

    def _wait_for_work(self, done: Callable[[], bool]) -> None:
        """Until Spark works on something, or was so quick that it is done."""

        def works() -> bool:
            with closing(open_store(self.machines.address).open_reader()) as reader:
                health = from_json(reader.replicator_status("default").text)
            return health is not None and health.done is not None and not health.done.over

        self._wait(lambda: works() or done(), "work on Spark")

    def _records(self, kind: str) -> list[BulkRecord]:
        return [record for record in self._store.bulk_records() if record.kind == kind]

    def _told(self, kind: str) -> str:
        """What the last job of a kind did."""
        records = self._records(kind)
        if not records:
            return f"{kind}: none"
        last = records[-1]
        seconds = last.finished - last.started
        return f"{kind}: {last.rows:,} rows, {last.tasks} tasks of {last.application} in {seconds:.0f} s"

    def _wanted(self, user: str) -> dict[tuple[str, str], str]:
        """What SQL says that a user's device has to show."""
        counted = f", {_COUNTED[self._shape]}" if self._shape in _COUNTED else ""
        archive = f"*{counted}" if self._shape != 1 else f"id, owner, n, body{counted}"
        queries = {
            "beats": "select id::text as key, id from beats",
            "lists": "select id as key, * from lists where owner = %(user)s",
            "todos": "select id as key, * from todos where list_id in (select id from lists where owner = %(user)s)",
            "archive": f"select id as key, {archive} from archive where owner = %(user)s",
        }
        wanted: dict[tuple[str, str], str] = {}
        with psycopg.connect(self.machines.source, autocommit=True) as connection:
            for table, query in queries.items():
                found = connection.execute(
                    f"select key, (to_jsonb(t) - 'key')::text from ({query}) t".encode(), {"user": user}
                )
                for key, text in found.fetchall():
                    wanted[table, key] = json.dumps(json.loads(text), sort_keys=True)
        return wanted

    # what is done

    def _kill(self, name: str, act: _Act) -> None:
        self.killed[name.rpartition("-")[0]] += 1
        act.killed = self.machines.kill(name)


@dataclass
class _Act:
    started: float
    beat: int
    killed: float | None = None
    worked: float | None = None
