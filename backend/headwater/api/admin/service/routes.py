"""The routes for what operators see and do of the service at work."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headwater.api.admin.route import NOT_FOUND, TOO_LARGE, TOO_LONG, AdminRoute, AdminSettings
from headwater.api.admin.service.audits import AuditsHandler
from headwater.api.admin.service.buckets import BucketsHandler
from headwater.api.admin.service.letters import LettersHandler
from headwater.api.admin.service.series import SERIES, Recorder, SeriesHandler
from headwater.api.workers import Answers
from headwater.replication.status import SourceStatuses
from headwater.storage.contract.reader import StoreReader


class ServiceRoutes:
    """Creates the handlers, and starts and closes what they need."""

    def __init__(self, settings: AdminSettings, reader: StoreReader, devices: Callable[[], int]) -> None:
        self._letters = LettersHandler(settings.upload)
        self._audits = AuditsHandler(settings)
        self._buckets = BucketsHandler(settings)
        self._recorder = Recorder(SourceStatuses(reader, settings.sources).find, devices)
        self._series = SeriesHandler(self._recorder, settings.workers)

    def routes(self, prefix: str) -> Iterator[AdminRoute]:
        letters, audits = self._letters, self._audits
        yield AdminRoute("GET", f"{prefix}/letters", letters.letters, (NOT_FOUND,))
        yield AdminRoute("GET", f"{prefix}/letter", letters.letter, (NOT_FOUND, TOO_LARGE))
        yield AdminRoute("POST", f"{prefix}/letters/retry", letters.retry, (NOT_FOUND,))
        yield AdminRoute("POST", f"{prefix}/letters/discard", letters.discard, (NOT_FOUND,))
        yield AdminRoute("GET", f"{prefix}/buckets", self._buckets.buckets, (TOO_LONG,))
        yield AdminRoute("GET", f"{prefix}/audit", audits.audits)
        yield AdminRoute("POST", f"{prefix}/audit", audits.audit, (NOT_FOUND,))
        yield AdminRoute("GET", f"{prefix}/series", self._series.series)

    @property
    def answers(self) -> Answers:
        """What other processes of the endpoint may ask this one."""
        return {SERIES: self._series.own}

    def start(self) -> None:
        self._recorder.start()

    def close(self) -> None:
        self._recorder.close()
        self._buckets.close()
