"""Figures by minute: what was seen, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.api.admin.service.series import Minute, OwnSeries, Recorder, combined
from headwater.errors import HeadwaterError
from headwater.replication.meters import Totals
from headwater.replication.status import SourceStatus
from tests.support.fix_admin import AdminEndpoint


@dataclass
class Played:
    """Sources with these totals, and a number of devices."""

    totals: dict[str, Totals] = field(default_factory=dict)
    lags: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    devices: int = 0
    away: bool = False

    def find(self) -> list[SourceStatus]:
        if self.away:
            raise HeadwaterError("the store is away", code="HW_4001")
        found = []
        for name, totals in self.totals.items():
            lag_bytes, lag_seconds = self.lags.get(name, (0, 0.0))
            found.append(SourceStatus(name, at=1.0, totals=totals, lag_bytes=lag_bytes, lag_seconds=lag_seconds))
        return found

    def recorder(self) -> Recorder:
        return Recorder(self.find, lambda: self.devices, lambda: 30.0)


def test_counts_are_those_of_the_minute() -> None:
    played = Played({"default": Totals(rows=1000, transactions=100), "crm": Totals(rows=5, transactions=5)}, devices=3)
    recorder = played.recorder()
    recorder.look(10)
    played.totals = {"default": Totals(rows=1020, transactions=104), "crm": Totals(rows=6, transactions=6)}
    played.lags = {"default": (10, 0.5), "crm": (70, 0.1)}
    recorder.look(11)
    assert recorder.own().minutes == {
        10: Minute(None, None, 3, 0, 0.0),
        11: Minute(5, 21, 3, 70, 0.5),
    }


def test_a_replicator_that_starts_again_counts_from_nothing() -> None:
    played = Played({"default": Totals(rows=1000, transactions=100)})
    recorder = played.recorder()
    recorder.look(1)
    played.totals = {"default": Totals(rows=7, transactions=2)}
    recorder.look(2)
    assert recorder.own().minutes[2].commits == 2


def test_a_store_that_is_away_leaves_a_gap() -> None:
    played = Played({"default": Totals(transactions=100)}, devices=2)
    recorder = played.recorder()
    recorder.look(1)
    played.away = True
    recorder.look(2)
    played.away, played.totals = False, {"default": Totals(transactions=109)}
    recorder.look(3)
    told = combined([recorder.own()], 100)
    assert told.times == (60, 120, 180)
    assert told.series.commits == (None, None, 9)
    assert told.series.devices == (2, 2, 2)


def test_a_day_is_kept() -> None:
    recorder = Played().recorder()
    for minute in range(2000):
        recorder.look(minute)
    assert (min(recorder.own().minutes), len(recorder.own().minutes)) == (560, 1440)
    recorder.look(1000)  # by a clock that was set back
    assert max(recorder.own().minutes) == 1000


def test_processes_are_one_endpoint() -> None:
    first = OwnSeries(100.0, {5: Minute(1, 2, 10, 3, 0.5), 7: Minute(None, None, 4)})
    second = OwnSeries(160.0, {6: Minute(8, 9, 20, 1, 0.25), 7: Minute(2, 2, 5, 6, 1.0)})
    told = combined([first, second], 1440)
    assert (told.since, told.step, told.times) == (100.0, 60, (300, 360, 420))
    assert told.series.devices == (10, 20, 9)
    assert told.series.commits == (1, 8, 2)
    assert combined([first, second], 2).times == (360, 420)
    assert combined([OwnSeries(1.0, {})], 5).times == ()


def test_asked(admin: AdminEndpoint) -> None:
    told = admin.get("/api/headwater/v1/series", hours=1)
    assert (told["step"], told["times"]) == (60, [])
    assert told["since"] > 0
    for wrong in ("0", "25", "x"):
        assert admin.refusal("GET", "/api/headwater/v1/series", 400, params={"hours": wrong})["code"] == "HW_6201"
