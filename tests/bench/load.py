"""Thousands of devices at one endpoint, by transport and format, beside the budgets and plain HTTP NDJSON.

They stand idle, all hear of a commit, come back at once after they were cut off, and some download.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import psutil
import psycopg
import uvloop

from tests.bench import data, report
from tests.bench.devices import FORMS, Device, Form, completed, connect
from tests.bench.service import BenchService, Endpoint, Meter, Usage, bench_service, resident
from tests.support.fix_service import token_for

STREAMS = data.STREAMS + "  notices: {auto_subscribe: true, query: SELECT * FROM notices}\n"
NOTICES = "create table notices (id text primary key default gen_random_uuid()::text, text text not null)"

DOWNLOADS = 50
COMMITS = 5
AHEAD = 50
"""Streams before the counted ones, since what the first of them take is there once."""
_NOBODY = "nobody-else"

FEW = 200
"""Streams that hear of commits before the others connect."""

MEMORY, HEARD, BACK = 20.0, 0.3, 0.75
"""Budgets of a stream: KB of memory, and milliseconds of 2,000 until the last has heard of a commit, or is back."""
DOWNLOADED, DOWNLOAD_CPU = 600_000, 1.3
"""Budgets of all downloads: ops a second, and CPU seconds per million."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A line that is printed."""

    name: str
    value: float
    unit: str
    budget: float | None = None


def run(streams: int, ops: int) -> None:
    """So many idle streams; `ops` are those of all downloads together."""
    _allow_files(2 * streams + 1000)
    with bench_service(fsync="off") as service:
        publication = "create publication headwater for table items, notices"
        service.serve_ready(STREAMS, data.TABLE, NOTICES, data.insert(ops, owners=DOWNLOADS), publication)
        plain: list[Figure] = []
        for form in FORMS:
            report.heading(f"load over {form.name}: {streams:,} streams, {DOWNLOADS} downloads of {ops:,} ops in all")
            with service.endpoint(api={"parameters": {"max_concurrent_connections": 2 * streams + 1000}}) as endpoint:
                figures = uvloop.run(_Load(service, endpoint, form).measure(streams, ops))
            _print(figures, plain)
            plain = plain or figures


def _print(figures: Sequence[Figure], plain: Sequence[Figure]) -> None:
    for number, each in enumerate(figures):
        beside = [(FORMS[0].name, plain[number].value)] if plain else []
        report.line(each.name, each.value, each.unit, "budget", each.budget, *beside)


@dataclass(frozen=True, slots=True)
class _Load:
    service: BenchService
    endpoint: Endpoint
    form: Form
    tokens: dict[str, str] = field(default_factory=dict)

    async def measure(self, streams: int, ops: int) -> list[Figure]:
        users = [f"idle{number}" for number in range(streams)]
        ahead = await self._idle([f"ahead{number}" for number in range(AHEAD)])
        before = resident(self.endpoint.pid)
        devices = await self._idle(users[:FEW])
        of_few = await self._commits(devices) if streams > FEW else []
        devices += await self._idle(users[FEW:])
        await asyncio.sleep(1)
        held = resident(self.endpoint.pid) - before
        figures = [Figure("memory of an idle stream", held / streams / 1000, "KB", MEMORY)]
        figures += of_few
        figures += await self._commits(devices)
        figures += await self._storm(users, [*ahead, *devices])
        return figures + await self._downloads(ops)

    async def _commits(self, devices: Sequence[Device]) -> list[Figure]:
        """One row for everybody, a few times."""
        first, last = [], []
        with psycopg.connect(self.service.postgres.dsn("bench"), autocommit=True) as conn, self._meter() as usage:
            for _ in range(COMMITS):
                for device in devices:
                    device.completed = 0
                await asyncio.to_thread(conn.execute, "insert into notices (text) values ('a word to all')")
                committed = time.perf_counter()
                await completed(devices, 1)
                first.append(min(device.at for device in devices) - committed)
                last.append(max(device.at for device in devices) - committed)
        cpu, heard = usage.cpu / COMMITS / len(devices), HEARD * len(devices)
        return [
            Figure(f"commit to the first of {len(devices):,}", report.percentile(first, 0.5) * 1000, "ms"),
            Figure(f"commit to the last of {len(devices):,}", report.percentile(last, 0.5) * 1000, "ms", heard),
            Figure("  CPU a device", cpu * 1e6, "us"),
        ]

    async def _storm(self, users: Sequence[str], devices: Sequence[Device]) -> list[Figure]:
        """All are cut off, and come back at once with all that there is."""
        for device in devices:
            device.transport.abort()
        await self._until_alone()
        known = self._known()
        back = [self._device(user, known) for user in users]
        with self._meter() as usage:
            started = time.perf_counter()
            await connect(self.endpoint.port, back, len(back))
        assert sum(device.size for device in back) < 2000 * len(back), "nothing is sent again"
        for device in back:
            device.transport.abort()
        await self._until_alone()  # or downloads would be measured beside so many ends
        arrivals = [device.at - started for device in back]
        return [
            Figure("reconnect, the middle one", report.percentile(arrivals, 0.5) * 1000, "ms"),
            Figure("reconnect, the last", max(arrivals) * 1000, "ms", BACK * len(back)),
            Figure("  CPU a device", usage.cpu / len(back) * 1e6, "us"),
        ]

    async def _downloads(self, ops: int) -> list[Figure]:
        devices = [self._device(f"u{number}") for number in range(DOWNLOADS)]
        with self._meter() as usage:
            started = time.perf_counter()
            await connect(self.endpoint.port, devices, DOWNLOADS)
        seconds = max(device.at for device in devices) - started
        return [
            Figure("downloads", ops / seconds, "ops/s", DOWNLOADED),
            Figure("  bytes", sum(device.size for device in devices) / seconds / 1e6, "MB/s"),
            Figure("  CPU seconds per million", usage.cpu / ops * 1e6, "CPU-s", DOWNLOAD_CPU),
        ]

    async def _idle(self, users: Sequence[str]) -> list[Device]:
        devices = [self._device(user) for user in users]
        await connect(self.endpoint.port, devices, AHEAD)
        return devices

    def _device(self, user: str, known: Mapping[str, str] | None = None) -> Device:
        """A user's device. It has these buckets already; they are named as those of `_NOBODY`."""
        buckets = [{"name": name.replace(_NOBODY, user), "after": after} for name, after in (known or {}).items()]
        request = {"raw_data": True, "include_checksum": True, "client_id": user, "buckets": buckets}
        return self.form.device(self._token(user), request)

    def _token(self, user: str) -> str:
        """A device that comes back has the token that it had."""
        if user not in self.tokens:
            self.tokens[user] = token_for(user)
        return self.tokens[user]

    def _known(self) -> dict[str, str]:
        """The buckets of a user who has everything, and up to which op."""
        connection = http.client.HTTPConnection("127.0.0.1", self.endpoint.port)
        headers = {"Authorization": f"Token {token_for(_NOBODY)}", "Content-Type": "application/json"}
        connection.request("POST", "/sync/stream", "{}", headers)
        checkpoint = json.loads(connection.getresponse().readline())["checkpoint"]
        connection.close()
        return {bucket["bucket"]: checkpoint["last_op_id"] for bucket in checkpoint["buckets"]}

    async def _until_alone(self) -> None:
        deadline = time.monotonic() + 60
        process = psutil.Process(self.endpoint.pid)
        while sum(each.laddr.port == self.endpoint.port for each in process.net_connections("tcp")) > 1:  # it listens
            assert time.monotonic() < deadline, "the endpoint lets connections go that are closed"
            await asyncio.sleep(0.1)

    def _meter(self) -> AbstractContextManager[Usage]:
        return Meter(self.endpoint.pid).measure()


def _allow_files(wanted: int) -> None:
    """Each connection is a file here, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, hard)), hard))
