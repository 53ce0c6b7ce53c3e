"""Limits how many uploads, and how many bytes of them, are handled at once, in all and per user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from headwater.api.errors import ApiError


class TooManyUploadsError(ApiError):
    """Too many uploads are in progress, or too many bytes of them, in all or of this user."""

    code = "HW_6102"
    retry_after: ClassVar[int] = 2


class _Share:
    """Counts something, in all and per user."""

    def __init__(self, what: str, most: int, most_per_user: int) -> None:
        self._what = what
        self._most = most
        self._most_per_user = most_per_user
        self._of_user: Counter[str] = Counter()

    def take(self, user_id: str, count: int) -> None:
        """Count more. Raises TooManyUploadsError."""
        if self._of_user.total() + count > self._most:
            raise TooManyUploadsError(f"too many {self._what} are in progress", fix="send it again in a moment")
        if self._of_user[user_id] + count > self._most_per_user:
            raise TooManyUploadsError(f"too many {self._what} of this user are in progress", fix="send them one by one")
        self._of_user[user_id] += count

    def give_back(self, user_id: str, count: int) -> None:
        self._of_user[user_id] -= count
        if not self._of_user[user_id]:
            del self._of_user[user_id]


class UploadLimits:
    """Counts the uploads in progress, and the bytes of their bodies. The first `uncounted` bytes of each body are not
    counted, so that large bodies leave room for small ones. Not thread-safe: use it in one event loop."""

    def __init__(
        self, most: int, most_per_user: int, most_bytes: int, most_bytes_per_user: int, uncounted: int = 0
    ) -> None:
        self._uncounted = uncounted
        self._uploads = _Share("uploads", most, most_per_user)
        self._bytes = _Share("bytes of uploads", most_bytes, most_bytes_per_user)

    @contextmanager
    def room_for(self, user_id: str) -> Iterator[Callable[[int], None]]:
        """Count one upload of the user while the context is open. The context gives what to call for bytes of its body
        as they arrive. Both raise TooManyUploadsError."""
        self._uploads.take(user_id, 1)
        size = held = 0

        def hold(count: int) -> None:
            nonlocal size, held
            size += count
            more = max(0, size - self._uncounted) - held
            self._bytes.take(user_id, more)
            held += more

        try:
            yield hold
        finally:
            self._bytes.give_back(user_id, held)
            self._uploads.give_back(user_id, 1)
