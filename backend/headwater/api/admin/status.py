"""How replication stands, for an operator's tools: what the replicator keeps in the store about each source."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headwater.api.errors import ApiError
from headwater.replication.health.model import Health, from_json, health_key
from headwater.storage.contract.reader import StoreReader


class AdminRefusedError(ApiError):
    """No admin token, or a wrong one; the answer does not say which."""

    code = "PSYNC_S2101"
    status = 401

    def __init__(self) -> None:
        super().__init__("Authorization failed", fix="send one of api.tokens as: Authorization: Token …")


class StatusRoute:
    """`GET /api/admin/v1/status`."""

    def __init__(self, tokens: Sequence[str], tags: Sequence[str], reader: StoreReader) -> None:
        self._tokens = tokens
        self._tags = tags
        self._reader = reader
        self.route = Route("/api/admin/v1/status", self.answer, methods=["GET"])

    async def answer(self, request: Request) -> Response:
        """Handle one request."""
        require_admin(request.headers.get("authorization"), self._tokens)
        return JSONResponse({"data": {"sources": await run_in_threadpool(self._sources)}})

    def _sources(self) -> list[dict[str, Any]]:
        return [described(tag, health_of(self._reader, tag)) for tag in self._tags]


def require_admin(header: str | None, tokens: Sequence[str]) -> None:
    """Raises AdminRefusedError unless the header holds one of the tokens; an empty one never fits."""
    scheme, _, rest = (header or "").partition(" ")
    given = rest.strip().encode()
    if not given or scheme.lower() not in {"token", "bearer"}:
        raise AdminRefusedError
    known = [hmac.compare_digest(given, token.encode()) for token in tokens]
    if not any(known):
        raise AdminRefusedError


def health_of(reader: StoreReader, tag: str) -> Health | None:
    """How a source's replication stands; None before the first replicator."""
    health = from_json(reader.noted(health_key(tag)))
    return None if health is None else health.seen(alive=reader.replicator_alive())


def described(tag: str, health: Health | None) -> dict[str, Any]:
    """As JSON. `cause` is the error that keeps rows from flowing, if one does."""
    if health is None:
        return {"source": tag, "state": "stopped", "cause": None}
    cause = None if health.cause is None else health.as_dict()["trouble"]
    return {"source": tag, **health.as_dict(), "cause": cause}
