"""Limits how many uploads, and how many bytes of them, are handled at once, in all and per user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from headwater.api.errors import ApiError
from headwater.api.quota import Quota


class TooManyUploadsError(ApiError):
    """Too many uploads are in progress, or too many bytes of them, in all or of this user."""

    code = "HW_6102"
    retry_after: ClassVar[int] = 2


def _quota(what: str, most: int, most_per_user: int) -> Quota:
    def refuse(*, of_key: bool) -> TooManyUploadsError:
        if of_key:
            return TooManyUploadsError(f"too many {what} of this user are in progress", fix="send them one by one")
        return TooManyUploadsError(f"too many {what} are in progress", fix="send it again in a moment")

    return Quota(most, most_per_user, refuse)


class UploadLimits:
    """Counts the uploads in progress, and the bytes of their bodies. The first `uncounted` bytes of each body are not
    counted, so that large bodies leave room for small ones. Not thread-safe: use it in one event loop."""

    def __init__(
        self, most: int, most_per_user: int, most_bytes: int, most_bytes_per_user: int, uncounted: int = 0
    ) -> None:
        self._uncounted = uncounted
        self._uploads = _quota("uploads", most, most_per_user)
        self._bytes = _quota("bytes of uploads", most_bytes, most_bytes_per_user)

    @contextmanager
    def room_for(self, user_id: str) -> Iterator[Callable[[int], None]]:
        """Count one upload of the user while the context is open. The context gives what to call for bytes of its body
        as they arrive. Both raise TooManyUploadsError."""
        size = held = 0

        def hold(count: int) -> None:
            nonlocal size, held
            size += count
            more = max(0, size - self._uncounted) - held
            self._bytes.take(user_id, more)
            held += more

        with self._uploads.hold(user_id):
            try:
                yield hold
            finally:
                self._bytes.release(user_id, held)
