"""Figures of the last day by minute. They are kept in memory: each process of the endpoint has seen what it has seen
since its start, and the answer says since when."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from headwater.api.workers import Workers
from headwater.errors import HeadwaterError
from headwater.replication.meters import Totals
from headwater.replication.status import SourceStatus

SERIES = "series"
"""The name of the question to the processes of an endpoint."""

STEP = 60
MOST_HOURS = 24
_MOST_MINUTES = MOST_HOURS * 60

Value = TypeVar("Value", int, float)

log = logging.getLogger(__name__)


class SeriesRequest(Struct, frozen=True):
    """How many hours to go back."""

    hours: Annotated[int, Meta(ge=1, le=MOST_HOURS)] = MOST_HOURS


class Minute(Struct, frozen=True):
    """What was seen of a minute, null where it could not be: `commits` of sources and `rows` that they changed, both in
    this minute, of all sources; at its end the `devices` with an open stream, and of the source that is furthest behind
    `lag_bytes` and `lag_seconds`."""

    commits: int | None = None
    rows: int | None = None
    devices: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None


class OwnSeries(Struct, frozen=True):
    """What one process has seen since then, by minute since 1970."""

    since: float
    minutes: dict[int, Minute]


class Series(Struct, frozen=True):
    """Each has a value for each of the times; null where nothing is known."""

    commits: tuple[int | None, ...]
    rows: tuple[int | None, ...]
    devices: tuple[int | None, ...]
    lag_bytes: tuple[int | None, ...]
    lag_seconds: tuple[float | None, ...]


class SeriesResponse(Struct, frozen=True):
    """Figures by minute. `times` are the beginnings of minutes, `step` seconds apart; all times are in seconds since
    1970. Nothing is known from before `since`, when the endpoint started. Devices are those of this endpoint."""

    step: int
    since: float
    times: tuple[int, ...]
    series: Series


class Recorder:
    """Looks once a minute, in a thread of its own, and keeps a day of it."""

    def __init__(
        self,
        statuses: Callable[[], Sequence[SourceStatus]],
        devices: Callable[[], int],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._statuses = statuses
        self._devices = devices
        self._clock = clock
        self._since = clock()
        self._minutes: dict[int, Minute] = {}
        self._totals: Mapping[str, Totals] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headwater-series", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()

    def own(self) -> OwnSeries:
        """What this process has seen. May be called in any thread."""
        with self._lock:
            return OwnSeries(self._since, dict(self._minutes))

    def look(self, minute: int) -> None:
        """Record that minute, which ends now."""
        devices = self._devices()
        try:
            found = self._statuses()
        except HeadwaterError:  # which others report
            seen = Minute(devices=devices)
        else:
            commits, rows = self._counted({each.source: each.totals for each in found if each.at is not None})
            lags = [each.lag_bytes for each in found if each.lag_bytes is not None]
            seconds = [each.lag_seconds for each in found if each.lag_seconds is not None]
            seen = Minute(commits, rows, devices, max(lags, default=None), max(seconds, default=None))
        with self._lock:
            self._minutes[minute] = seen
            for old in [each for each in self._minutes if not minute - _MOST_MINUTES < each <= minute]:
                del self._minutes[old]  # also what was recorded by a clock that has been set back since

    def _counted(self, totals: Mapping[str, Totals]) -> tuple[int | None, int | None]:
        """Commits and rows since the last look, of the sources that were known then."""
        before, self._totals = self._totals, {**self._totals, **totals}
        known = [(before[name], now) for name, now in totals.items() if name in before]
        if not known:
            return None, None
        return (
            sum(_more(old.transactions, new.transactions) for old, new in known),
            sum(_more(old.rows, new.rows) for old, new in known),
        )

    def _run(self) -> None:
        try:
            self._counted({each.source: each.totals for each in self._statuses() if each.at is not None})
        except HeadwaterError:
            pass  # the first minute has no counts then
        while True:
            now = self._clock()
            minute = int(now // STEP)
            if self._closing.wait((minute + 1) * STEP - now):
                return
            try:
                self.look(minute)
            except Exception:  # whatever it is, the next minute may be counted
                log.exception("the figures of a minute are missing")


def _more(old: int, new: int) -> int:
    return new if new < old else new - old  # the replicator counts from 0 after its start


class SeriesHandler:
    """Tells what all processes of the endpoint have recorded."""

    def __init__(self, recorder: Recorder, workers: Workers | None) -> None:
        self._recorder = recorder
        self._workers = workers

    def series(self, request: SeriesRequest) -> SeriesResponse:
        """Tell commits, changed rows, devices and lag by minute, of the last day at most."""
        if self._workers is None:
            answers = [self._recorder.own()]
        else:
            answers = [msgspec.json.decode(answer, type=OwnSeries) for _, answer in self._workers.ask(SERIES)]
            answers = answers or [self._recorder.own()]
        return combined(answers, request.hours * 60)

    def own(self) -> bytes:
        """What this process has recorded, as JSON for the other processes of the endpoint."""
        return msgspec.json.encode(self._recorder.own())


def combined(answers: Sequence[OwnSeries], most: int) -> SeriesResponse:
    """One series from those of all processes, of the last `most` minutes. Each has its own devices; of what all see
    alike, the first that knows it is taken."""
    since = min(each.since for each in answers)
    known = {minute for each in answers for minute in each.minutes}
    last = max(known, default=0)
    first = max(min(known, default=0), last - most + 1)
    times = range(first, last + 1) if known else range(0)
    found = [_minute([each.minutes[minute] for each in answers if minute in each.minutes]) for minute in times]
    series = Series(
        tuple(each.commits for each in found),
        tuple(each.rows for each in found),
        tuple(each.devices for each in found),
        tuple(each.lag_bytes for each in found),
        tuple(each.lag_seconds for each in found),
    )
    return SeriesResponse(STEP, since, tuple(minute * STEP for minute in times), series)


def _minute(seen: Sequence[Minute]) -> Minute:
    devices = [each.devices for each in seen if each.devices is not None]
    return Minute(
        _first(each.commits for each in seen),
        _first(each.rows for each in seen),
        sum(devices) if devices else None,
        _first(each.lag_bytes for each in seen),
        _first(each.lag_seconds for each in seen),
    )


def _first(values: Iterable[Value | None]) -> Value | None:
    return next((value for value in values if value is not None), None)
