"""Which source an uploaded write goes to, where there are several."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from headwater.errors import HeadwaterError
from headwater.source.connect import SourceUnreachableError
from headwater.source.upload.apply import Outcome, Taken, Uploads
from headwater.source.upload.entries import ClientTransaction, Device, transaction_of
from headwater.source.upload.errors import UploadRetryError
from headwater.source.upload.settings import UploadSettings
from headwater.source.upload.targets import home_of
from headwater.source.upload.waiting import Waiting, waiting_of

PLACE_SECONDS = 5.0
"""How long an upload waits for a connection to its source that others use, before the device is told to come again."""


@dataclass(frozen=True, slots=True)
class Routed:
    """What became of a transaction: in all, and the sources whose records have it."""

    outcome: Outcome
    source: str
    sources: frozenset[str]


@dataclass(frozen=True, slots=True)
class Told:
    """Dead letters, newest first, with the source of each, and why sources that may have others did not answer."""

    letters: Sequence[tuple[str, Waiting]]
    silent: Sequence[HeadwaterError]


class RoutedUploads:
    """Applies each uploaded transaction in its source. A source that does not answer keeps uploads to others from
    nothing. Not thread-safe: use it in one event loop."""

    def __init__(self, settings: UploadSettings) -> None:
        self._settings = settings
        self.by_source = {name: Uploads(each) for name, each in settings.by_source().items()}
        self._places = {name: asyncio.Semaphore(settings.max_connections) for name in self.by_source}
        self._inside = Counter[str]()
        self._held_up: set[str] = set()
        shards = {name for target in settings.targets.values() if target.shards for name in target.sources}
        self._common = next((name for name in self.by_source if name not in shards), next(iter(self.by_source)))

    def unknown_columns(self) -> Mapping[tuple[str, str, str], int]:
        """See `Uploads.unknown_columns`; of all sources together."""
        found = Counter[tuple[str, str, str]]()
        for uploads in self.by_source.values():
            found.update(uploads.unknown_columns())
        return found

    async def close(self) -> None:
        for uploads in self.by_source.values():
            await uploads.close()

    async def take(self, device: Device, transaction: ClientTransaction) -> Routed:
        """Apply the transaction in its source, or park it there; with `split`, each source's part by itself, in the
        order in which the transaction names them. Raises what `Uploads.take` raises: then the parts before are
        recorded, and the same can be sent again."""
        parts = self.parts(device, transaction)
        found = []
        for source, part in parts.items():
            async with self._turn(source):
                found.append((source, await self.by_source[source].take(device, part)))
        source, outcome = _decisive(found)
        return Routed(outcome, source, frozenset(parts))

    async def waiting(self, device: Device, limit: int) -> Told:
        """The newest dead letters of a device in all sources that answer. Raises what `take` raises if none does."""

        async def of(source: str, uploads: Uploads) -> list[tuple[str, Waiting]]:
            async with self._turn(source):
                return [(source, each) for each in await waiting_of(uploads, device, limit)]

        found = await asyncio.gather(*(of(*each) for each in self.by_source.items()), return_exceptions=True)
        letters, silent = list[tuple[str, Waiting]](), list[HeadwaterError]()
        for each in found:
            if isinstance(each, HeadwaterError):
                silent.append(each)
            elif isinstance(each, BaseException):
                raise each
            else:
                letters += each
        if len(silent) == len(found):
            raise silent[0]
        letters.sort(key=lambda each: (each[1].parked_at, each[1].letter), reverse=True)
        return Told(letters[:limit], silent)

    def parts(self, device: Device, transaction: ClientTransaction) -> Mapping[str, ClientTransaction]:
        """The parts of a transaction by source. Unless it may be split, all goes to the source of the first entry that
        has one, where it is refused if another entry is of another source or none. If no entry has one, it is refused
        in a source that is no shard, if there is one: shards may be customers', and none is to keep what is not its
        own."""
        if len(self.by_source) == 1:
            return {self._common: transaction}
        sources = [self._source(device, entry.fields) for entry in transaction.entries]
        first = next((source for source in sources if source is not None), self._common)
        if not self._settings.split:
            return {first: transaction}
        parts: dict[str, list[int]] = {}
        for number, source in enumerate(sources):
            parts.setdefault(source or first, []).append(number)
        return {
            source: transaction_of([transaction.entries[number] for number in numbers])
            for source, numbers in parts.items()
        }

    def _source(self, device: Device, fields: Mapping[str, object]) -> str | None:
        """The source of an entry. None if it can't be told, and for a table that is not allowed: any source refuses
        these."""
        name = fields.get("type")
        target = self._settings.targets.get(name) if isinstance(name, str) else None
        return None if target is None else home_of(target, device, fields)

    @asynccontextmanager
    async def _turn(self, source: str) -> AsyncIterator[None]:
        """Have one of the source's connections while the context is open. While the source does not answer, one at a
        time tries again. Raises UploadRetryError."""
        if len(self.by_source) == 1:  # there is nobody to be protected
            yield
            return
        if source in self._held_up and self._inside[source]:
            raise UploadRetryError(f"others wait already for the source {source}", fix="send it again")
        try:
            async with asyncio.timeout(PLACE_SECONDS):
                await self._places[source].acquire()
        except TimeoutError:
            self._held_up.add(source)
            raise UploadRetryError(f"all connections to the source {source} are in use", fix="send it again") from None
        self._inside[source] += 1
        try:
            yield
        except SourceUnreachableError:
            self._held_up.add(source)
            raise
        else:
            self._held_up.discard(source)
        finally:
            self._inside[source] -= 1
            self._places[source].release()


def _decisive(found: Sequence[tuple[str, Outcome]]) -> tuple[str, Outcome]:
    """The outcome of a transaction by those of its parts: parked if one is, applied if one is, else known before."""
    for taken in (Taken.PARKED, Taken.APPLIED):
        for source, outcome in found:
            if outcome.taken is taken:
                return source, outcome
    return found[0]


def letter_name(settings: UploadSettings, source: str, letter: int) -> int | str:
    """What devices and operators call a dead letter: its number, after the name of its source if there are several."""
    return f"{source}:{letter}" if settings.targets else letter
