"""What can go wrong on a device. Every error has a stable `code`, and its text says what to do."""

from __future__ import annotations


class ClientError(Exception):
    """Base of all errors of this package."""

    code = "HWC_ERROR"

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"


class SchemaError(ClientError):
    """A schema contradicts itself, or names something that SQLite cannot hold."""

    code = "HWC_SCHEMA"


class FileError(ClientError):
    """A file is not a device's database, is of another version, or cannot be opened."""

    code = "HWC_FILE"


class ConnectError(ClientError):
    """`connect` or `subscribe` was given what cannot work, or the database is closed."""

    code = "HWC_CONNECT"


class SyncedElsewhereError(ClientError):
    """Another process, or another `Database` of this one, syncs the file. This one waits until that ends."""

    code = "HWC_SYNCED_ELSEWHERE"


class UnreachableError(ClientError):
    """The server could not be reached, or the connection broke. It is tried again."""

    code = "HWC_UNREACHABLE"


class RefusedError(ClientError):
    """The server answered with an error. It is tried again, not before `retry_after` seconds if the server named some.
    `status` is that of HTTP, None over a websocket."""

    code = "HWC_REFUSED"

    def __init__(self, path: str, status: int | None, text: str, retry_after: float | None = None) -> None:
        super().__init__(path, status, text, retry_after)
        self.path, self.status, self.text, self.retry_after = path, status, text, retry_after

    def __str__(self) -> str:
        answered = "ended with an error" if self.status is None else f"answered {self.status}"
        return f"[{self.code}] {self.path} {answered}: {self.text[:500]}"


class TokenRefusedError(RefusedError):
    """The server no longer accepts the token. A new one is fetched."""

    code = "HWC_TOKEN_REFUSED"


class ProtocolError(ClientError):
    """The server sent something that is not of the protocol. The stream is closed and opened again."""

    code = "HWC_PROTOCOL"


class ChecksumMismatchError(ClientError):
    """Buckets do not add up to what the server says. They were removed, and are downloaded again."""

    code = "HWC_CHECKSUM"

    def __init__(self, buckets: tuple[str, ...]) -> None:
        super().__init__(buckets)
        self.buckets = buckets

    def __str__(self) -> str:
        return f"[{self.code}] checksums differ, downloading these buckets again: {', '.join(self.buckets)}"


class UploadStuckError(ClientError):
    """`upload_data` returned without completing the transaction at the head of the queue. It is tried again."""

    code = "HWC_UPLOAD_STUCK"


class RetiredError(ClientError):
    """Sync was ended before this could be written or uploaded. It comes again with the next connection."""

    code = "HWC_RETIRED"


class MissingExtraError(ClientError):
    """A package that this needs is not installed."""

    code = "HWC_MISSING_EXTRA"

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(what, extra)
        self.what, self.extra = what, extra

    def __str__(self) -> str:
        return f"[{self.code}] {self.what} needs one more package: pip install 'headwater-client[{self.extra}]'"


class NotSyncedError(ClientError):
    """What was waited for did not come in time."""

    code = "HWC_NOT_SYNCED"
