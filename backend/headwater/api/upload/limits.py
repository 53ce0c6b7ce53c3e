"""Limits how many uploads are handled at once, in all and per user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from headwater.api.errors import ApiError
from headwater.errors import Kind


class TooManyUploadsError(ApiError):
    """Too many uploads are in progress, in all or of this user."""

    kind: ClassVar[Kind] = Kind.RETRY
    code = "HW_6102"
    status: ClassVar[int] = 429
    retry_after: ClassVar[int] = 2


class UploadLimits:
    """Counts the uploads in progress. Not thread-safe: use it in one event loop."""

    def __init__(self, most: int, most_per_user: int) -> None:
        self._most = most
        self._most_per_user = most_per_user
        self._of_user: Counter[str] = Counter()

    @contextmanager
    def room_for(self, user_id: str) -> Iterator[None]:
        """Count one upload of the user while the context is open. Raises TooManyUploadsError."""
        if self._of_user.total() >= self._most:
            raise TooManyUploadsError("too many uploads are in progress", fix="send it again in a moment")
        if self._of_user[user_id] >= self._most_per_user:
            raise TooManyUploadsError("too many uploads of this user are in progress", fix="send them one by one")
        self._of_user[user_id] += 1
        try:
            yield
        finally:
            self._of_user[user_id] -= 1
            if not self._of_user[user_id]:
                del self._of_user[user_id]
