"""Counts what is in use, and refuses more than a limit allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from headwater.api.errors import TooManyRequestsError


class RefuseCallback(Protocol):
    """Makes the error for a limit that is reached: that of the key, or that in all."""

    def __call__(self, *, of_key: bool) -> Exception: ...


class Quota:
    """Counts what is in use, in all and by key, such as a user or an address; a limit of None is no limit, and
    one of 0 refuses all. Not thread-safe: use it in one event loop."""

    def __init__(self, total: int | None, per_key: int | None, refuse: RefuseCallback) -> None:
        self.total = total
        self.per_key = per_key
        self.used = 0
        self._refuse = refuse
        self._by_key: Counter[str] = Counter()

    def check(self, key: str | None, count: int = 1) -> None:
        """Raise the error of `refuse` if `take` would."""
        if self.total is not None and self.used + count > self.total:
            raise self._refuse(of_key=False)
        if self.per_key is not None and key is not None and self._by_key[key] + count > self.per_key:
            raise self._refuse(of_key=True)

    def take(self, key: str | None = None, count: int = 1) -> None:
        """Count more until `release`. Without a key, only the limit in all applies. Raises the error of `refuse`."""
        self.check(key, count)
        self.used += count
        if key is not None:
            self._by_key[key] += count

    def release(self, key: str | None = None, count: int = 1) -> None:
        """Call it once for each `take` that did not raise."""
        self.used -= count
        if key is not None:
            self._by_key[key] -= count
            if not self._by_key[key]:
                del self._by_key[key]

    @contextmanager
    def hold(self, key: str | None = None) -> Iterator[None]:
        """Count one more while the context is open. Raises the error of `refuse`."""
        self.take(key)
        try:
            yield
        finally:
            self.release(key)


def user_quota(what: str, per_user: int, total: int | None = None) -> Quota:
    """A quota of users. `what` names what is counted in messages."""

    def refuse(*, of_key: bool) -> TooManyRequestsError:
        has = f"this user already has {per_user}" if of_key else f"the service already has {total}"
        return TooManyRequestsError(f"{has} {what}")

    return Quota(total, per_user, refuse)
