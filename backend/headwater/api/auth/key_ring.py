"""All keys that are trusted. Those that are fetched are refreshed in the background, and at once when a token names an
unknown key."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from headwater.api.auth.errors import JwksError
from headwater.api.auth.fetch import CHECK_ADDRESS, SEE_LOG, KeySet
from headwater.api.auth.keys import Key, Unfetched
from headwater.telemetry.log_facts import log_extra

REFRESH_SECONDS = 300.0
KEEP_SECONDS = 3600.0
"""How long fetched keys stay in use while they can't be fetched again."""

WAIT_SECONDS = 5.0
"""How long a request waits for a fetch."""

MOST_LOOKS = 20
LOOK_SECONDS = 60.0
"""At most MOST_LOOKS fetches for unknown keys are made in this time, since anybody can send tokens with such keys. When
they are used up, there is one after every LOOK_SECONDS / MOST_LOOKS, which is less than a request waits: so strangers
do not keep out a token of a key that is new."""

_SHOWN = 20

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Allowance:
    """Limits the rate of fetches for unknown keys."""

    now: Callable[[], float]
    left: float = MOST_LOOKS
    counted_at: float | None = None

    def pause(self) -> float:
        """How many seconds the next fetch has to wait, because too many were made of late."""
        now = self.now()
        passed = 0.0 if self.counted_at is None else now - self.counted_at
        self.left = min(MOST_LOOKS, self.left + passed * MOST_LOOKS / LOOK_SECONDS)
        self.counted_at = now
        return max(0.0, 1 - self.left) * LOOK_SECONDS / MOST_LOOKS

    def take(self) -> None:
        """Count a fetch, which waits for its pause."""
        self.left -= 1


class RemoteKeys:
    """The keys of one address, which `fetch` gets. While it fails, the last keys stay in use for KEEP_SECONDS. There is
    one fetch at a time, which all waiting requests share. `address` is for messages, `now` is a clock in seconds."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[KeySet]],
        address: str,
        *,
        now: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._fetch = fetch
        self._address = address
        self._now = now
        self._jitter = jitter
        self._allowance = Allowance(now)
        self._keys: tuple[Key, ...] = ()
        self._fetched_at: float | None = None
        self._unfetched: Unfetched | None = None
        self._failures = 0
        self._fetching: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None

    def known(self) -> Sequence[Key]:
        """The keys that were fetched last; none when that was more than KEEP_SECONDS ago."""
        if self._fetched_at is None or self._now() - self._fetched_at > KEEP_SECONDS:
            return ()
        return self._keys

    async def look_again(self) -> bool:
        """Fetch the keys, now or as soon as it is allowed, or wait for the fetch that somebody else waits for. Raises
        JwksError when the fetch fails, or takes longer than WAIT_SECONDS."""
        pause = 0.0
        if self._fetching is None:
            pause = self._allowance.pause()
            if pause and self._unfetched is not None:
                raise again(self._unfetched.error)
            self._allowance.take()
        done, _ = await asyncio.wait([self._task(pause)], timeout=WAIT_SECONDS)
        if not done:
            raise JwksError("the keys of tokens are still being fetched", self._address, "try again")
        if self._unfetched is not None:
            raise again(self._unfetched.error)
        return True

    @property
    def unfetched(self) -> Unfetched | None:
        """Why the keys can't be fetched now, if they can't. May be read in any thread."""
        return self._unfetched

    def start(self) -> None:
        """Start to refresh the keys in the background."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        tasks = [task for task in (self._keeper, self._fetching) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def pause(self) -> float:
        """Seconds until the next fetch: REFRESH_SECONDS, or an exponential backoff after failures. Both are random by
        some, so that processes that started together don't fetch together."""
        if self._failures == 0:
            return REFRESH_SECONDS * (0.9 + 0.1 * self._jitter())
        return min(2.0 ** min(self._failures, 20), REFRESH_SECONDS) * (0.5 + 0.5 * self._jitter())

    async def _keep(self) -> None:
        while True:
            await asyncio.wait([self._task()])
            await asyncio.sleep(self.pause())

    def _task(self, pause: float = 0.0) -> asyncio.Task[None]:
        """The fetch that is in progress, or one that begins after the pause."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._refresh(pause))
            self._fetching.add_done_callback(self._done)
        return self._fetching

    def _done(self, _: asyncio.Task[None]) -> None:
        self._fetching = None

    async def _refresh(self, pause: float) -> None:
        await asyncio.sleep(pause)
        try:
            found = await self._fetch()
        except JwksError as error:
            self._fail(error)
        except Exception:
            log.exception("fetching keys failed unexpectedly", extra=log_extra({"address": self._address}))
            self._fail(JwksError("the keys of tokens can't be fetched", self._address, SEE_LOG))
        else:
            self._take(found)

    def _fail(self, error: JwksError) -> None:
        since = time.time() if self._unfetched is None else self._unfetched.since
        self._unfetched = Unfetched(self._address, error, since)
        self._failures += 1
        started = datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds")
        facts = {
            "code": error.code,
            "reason": error.where,
            "keys_kept": len(self.known()),
            "since": started,
            "fix": CHECK_ADDRESS,
        }
        log.warning("%s", error.what, extra=log_extra(facts))

    def _take(self, found: KeySet) -> None:
        news = self._fetched_at is None or self._unfetched is not None or _kids(found.keys) != _kids(self._keys)
        self._keys, self._fetched_at = found.keys, self._now()
        self._unfetched, self._failures = None, 0
        if news:
            facts = {"address": self._address, "kids": _kids(found.keys)[:_SHOWN], "ignored": found.ignored[:_SHOWN]}
            level = logging.INFO if found.keys else logging.WARNING
            log.log(level, "keys fetched", extra=log_extra(facts))


class KeyRing:
    """All keys of a config: its own, and those of its addresses. Not thread-safe: use it in one event loop."""

    def __init__(self, fixed: Sequence[Key], remote: Sequence[RemoteKeys] = ()) -> None:
        self._fixed = tuple(fixed)
        self._remote = tuple(remote)

    def known(self) -> Sequence[Key]:
        """All keys that are trusted now. Does not wait."""
        return (*self._fixed, *(key for each in self._remote for key in each.known()))

    async def look_again(self) -> bool:
        """Look for new keys at all addresses at once, because no known key signed a token. Returns whether there may be
        new ones. Raises JwksError only when no fetch succeeded."""
        looks = await asyncio.gather(*(each.look_again() for each in self._remote), return_exceptions=True)
        failures = [each for each in looks if isinstance(each, BaseException)]
        if failures and not any(each is True for each in looks):
            raise failures[0]
        return True in looks

    def unfetched(self) -> Sequence[Unfetched]:
        """The addresses whose keys can't be fetched now. May be called in any thread."""
        return [each.unfetched for each in self._remote if each.unfetched is not None]

    def start(self) -> None:
        for each in self._remote:
            each.start()

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._remote))


def again(error: JwksError) -> JwksError:
    """A copy: an error that is raised again keeps the traceback, and so the objects, of the first request."""
    return type(error)(*error.args)


def _kids(keys: Sequence[Key]) -> list[str | None]:
    return [key.kid for key in keys]
