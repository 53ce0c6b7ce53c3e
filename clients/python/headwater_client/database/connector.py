"""Connectors for apps without a backend of their own: they upload to Headwater, and keep what it refuses."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from typing import Any, Final
from urllib.parse import quote

import httpx

from headwater_client.database.database import CrudTransaction, Database
from headwater_client.errors import ConnectError, ProtocolError, RefusedError, TokenRefusedError, UnreachableError
from headwater_client.schema import Table
from headwater_client.storage.uploads import CrudEntry
from headwater_client.transport.http import Credentials, refusal, trusted

REFUSALS: Final = Table(
    {"at": "text", "message": "text", "code": "text", "op": "text", "type": "text", "row_id": "text", "writes": "text"},
    local_only=True,
)
"""Goes into the schema of an app that shows refusals, under the name `upload_refusals`."""

_NAME: Final = "upload_refusals"


@dataclass(frozen=True)
class Refusal:
    """A local transaction that the server refused; its rows are soon again what the server has.

    `message` is for the user, `description` for developers. `code` is the server's, `sqlstate` that of Postgres. `op`,
    `table` and `row_id` are those of the entry of `crud` that was refused, where one was.
    """

    dead_letter: int | str | None
    message: str
    description: str
    code: str
    sqlstate: str | None
    op: str | None
    table: str | None
    row_id: str | None
    crud: Sequence[CrudEntry]

    def __str__(self) -> str:
        return self.message

    @classmethod
    def of(cls, answer: Mapping[str, Any], crud: Sequence[CrudEntry]) -> Refusal:
        """Read what the server said of the transaction."""
        error, letter = answer["error"], answer.get("dead_letter")
        if not isinstance(error, dict):
            error = {}
        description = str(error.get("description"))
        return cls(
            letter if isinstance(letter, int | str) else None,
            _text(error.get("message")) or description,
            description,
            str(error.get("code")),
            _text(error.get("sqlstate")),
            _text(error.get("op")),
            _text(error.get("type")),
            _text(error.get("id")),
            crud,
        )


def _keep(database: Database, refusals: Iterable[Refusal]) -> None:
    """Keep them in `upload_refusals`, each once, if the schema has the table."""
    if _NAME not in database.synced_names:
        return
    now = datetime.now(timezone.utc).isoformat()
    for each in refusals:
        database.execute(
            f"INSERT OR REPLACE INTO {_NAME} (id, at, message, code, op, type, row_id, writes)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [str(each.dead_letter), now, each.message, each.sqlstate or each.code, each.op, each.table, each.row_id,
             json.dumps([as_json(entry) for entry in each.crud])],
        )  # fmt: skip


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


_AT_ONCE: Final = 100
"""Local transactions in one request."""

_TOO_LARGE: Final = 413
_SECONDS: Final = 60.0

_LONGEST_ANSWER: Final = 4 << 20
"""Bytes: what became of `_AT_ONCE` transactions is far shorter."""

_log = logging.getLogger("headwater_client")


class UploadConnector:
    """Syncs with Headwater and uploads to its `POST /upload`, for apps without a backend of their own.

    `token` is called for each new token; it may also be a token itself. `refused` is called for each local transaction
    that the server put aside, since it can't be applied. Where the schema has `upload_refusals`, it is also kept there.
    """

    def __init__(
        self, endpoint: str, token: str | Callable[[], str], refused: Callable[[Refusal], object] | None = None
    ) -> None:
        self._endpoint, self._token, self._refused = endpoint.rstrip("/"), token, refused
        self._credentials: Credentials | None = None

    def fetch_credentials(self) -> Credentials:
        token = self._token if isinstance(self._token, str) else self._token()
        self._credentials = Credentials(self._endpoint, token)
        return self._credentials

    def upload_data(self, database: Database) -> None:
        transactions = list(islice(database.crud_transactions(), _AT_ONCE))
        if not transactions:
            return
        sent, answers = self._send(database.client_id, transactions)
        answered = zip(sent, answers, strict=True)
        refused = [Refusal.of(answer, transaction.crud) for transaction, answer in answered if "error" in answer]
        _keep(database, refused)
        sent[-1].complete()
        for each in refused:
            self._report_refused(each)

    def check_refusals(self, database: Database) -> None:
        """Remove from `upload_refusals` what somebody has applied or discarded at the server since.

        Raises `RefusedError`, `UnreachableError`, `ProtocolError`.
        """
        kept = database.rows(f"SELECT id FROM {_NAME}") if _NAME in database.synced_names else []
        if not kept:
            return
        text = self._ask("GET", f"/upload/refused?client_id={quote(database.client_id)}")
        found = _list_in(text, "refused")
        if not json.loads(text).get("complete", True):  # it may still wait in a database that does not answer
            return
        waiting = {str(each.get("dead_letter")) for each in found}
        for row in kept:
            if str(row["id"]) not in waiting:
                database.execute(f"DELETE FROM {_NAME} WHERE id = ?", [row["id"]])

    def _report_refused(self, refusal: Refusal) -> None:
        try:
            if self._refused is not None:
                self._refused(refusal)
        except Exception:  # noqa: BLE001 - the next one is to be reported, too
            _log.exception("the callback for refused writes failed")

    def _send(
        self, client_id: str, transactions: Sequence[CrudTransaction]
    ) -> tuple[Sequence[CrudTransaction], list[dict[str, Any]]]:
        """Send as many as the server takes at once; which these were, and what it says of each."""
        crud = [{"crud": [as_json(entry) for entry in each.crud]} for each in transactions]
        try:
            text = self._ask("POST", "/upload", {"client_id": client_id, "transactions": crud})
        except RefusedError as error:
            if error.status != _TOO_LARGE or len(transactions) == 1:
                raise
            return self._send(client_id, transactions[: len(transactions) // 2])
        answers = _list_in(text, "transactions")
        if len(answers) != len(transactions):
            raise _not_answered(text)
        return transactions, answers

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        """The server's answer, as text."""
        credentials = self._credentials or self.fetch_credentials()
        url = self._endpoint + path
        headers = {"authorization": f"Token {credentials.token}"}
        try:
            with httpx.stream(method, url, json=body, headers=headers, timeout=_SECONDS, verify=trusted()) as response:
                text = _read(response)
        except httpx.HTTPError as error:
            raise UnreachableError(f"{url}: {error or type(error).__name__}") from error
        if response.status_code != 200:
            refused = refusal(path, response.status_code, text, response.headers)
            if isinstance(refused, TokenRefusedError):
                self._credentials = None
            raise refused
        return text


def _read(response: httpx.Response) -> str:
    """The answer, whole. Raises `UnreachableError` where it drips, and where it is longer than the server's ever
    are."""
    held, until = bytearray(), time.monotonic() + _SECONDS
    for piece in response.iter_bytes():
        held += piece
        if time.monotonic() > until or len(held) > _LONGEST_ANSWER:
            raise UnreachableError(f"{response.url} answers without end")
    return str(held, "utf-8", "replace")


def _list_in(text: str, name: str) -> list[dict[str, Any]]:
    """The list of this name in an answer. Others answer 200, too, as the sign-in page of a network does."""
    try:
        found = json.loads(text)[name]
    except (ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise _not_answered(text)
    return found


def _not_answered(text: str) -> ProtocolError:
    return ProtocolError(f"the server did not answer for each transaction: {text[:200]}")


class DownloadConnector(UploadConnector):
    """Syncs and uploads nothing. Local writes wait in the queue, and hold back what is downloaded."""

    def upload_data(self, database: Database) -> None:
        raise ConnectError("this device only downloads: its local writes wait for a connector that uploads")


def as_json(entry: CrudEntry) -> dict[str, object]:
    """An entry as the stock SDKs send it, and as Headwater's `POST /upload` takes it.

    JSON has no infinite numbers: they become null, as JavaScript writes them.
    """
    fields: dict[str, object] = {
        "op_id": entry.op_id, "op": entry.op, "type": entry.table, "id": entry.id, "tx_id": entry.transaction_id,
        "data": _finite(entry.data), "old": _finite(entry.previous), "metadata": entry.metadata,
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value is not None}


def _finite(values: Mapping[str, object] | None) -> dict[str, object] | None:
    if values is None:
        return None
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }
