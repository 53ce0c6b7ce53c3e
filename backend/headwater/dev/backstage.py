"""What the demo's page shows beside the lists: what happened, and which rules let a row through.

Each route answers about the user of the token alone, so that the page learns no more than its two people may.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import anyio
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headwater.api.admin.asking import Client
from headwater.api.admin.explain import ExplainDesk, ExplainRow
from headwater.api.auth.verify import Verifier
from headwater.api.errors import ApiError
from headwater.dev.rule_lines import RuleLines, RuleText
from headwater.dev.trace import Tracer

_LONGEST = 200
_MOST_OP_ID = 2**53


class BadQuestionError(ApiError):
    """A question to the demo has a wrong parameter."""

    code = "HW_8016"
    status: ClassVar[int] = 400


@dataclass(frozen=True, slots=True)
class About:
    """The demo's sync config, and how to open a session of its database."""

    rules: str
    rules_name: str
    database: str


@dataclass(frozen=True, slots=True)
class Way:
    """A bucket that brings a row, the stream that gives it, and the lines of the sync config that do."""

    bucket: str
    stream: str
    op_id: int
    lines: RuleLines


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a person has a row. `because` says why in a sentence."""

    included: bool
    because: str
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class Backstage:
    """Answers the page's questions."""

    verifier: Verifier
    tracer: Tracer
    desk: ExplainDesk
    rules: RuleText
    rules_name: str
    session: str

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/demo/about", self.about),
            Route("/demo/trace", self.trace),
            Route("/demo/explain", self.explain),
        ]

    async def about(self, request: Request) -> Response:
        """The rules, and where a person writes SQL of his own."""
        await self._user(request)
        return _json(About(self.rules.text, self.rules_name, self.session))

    async def trace(self, request: Request) -> Response:
        """The commits after the op `after` that changed what the user sees; without it, only where things stand."""
        user, after = await self._user(request), _op_id(request.query_params.get("after"))
        return await _answer(lambda: self.tracer.trace(user, after))

    async def explain(self, request: Request) -> Response:
        """Whether the user has the row `id` of `table`, and by which lines of the rules."""
        user = await self._user(request)
        asked = ExplainRow(Client(user), _text(request, "table"), _text(request, "id"))
        return await _answer(lambda: self._verdict(asked))

    def _verdict(self, asked: ExplainRow) -> Verdict:
        told = self.desk.row(asked)
        ways = [
            Way(place.bucket, reason.stream, place.op_id, self.rules.of_bucket(reason.stream, place.bucket))
            for place in told.places
            for reason in place.reasons[:1]
        ]
        return Verdict(told.included, told.because, tuple(ways))

    async def _user(self, request: Request) -> str:
        principal = await self.verifier.authorize(request.headers.get("authorization"))
        return principal.user_id


def _op_id(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 17 and int(text) < _MOST_OP_ID):
        raise BadQuestionError("`after` is not an op id", fix="use `checkpoint` of an earlier answer")
    return int(text)


def _text(request: Request, name: str) -> str:
    text = request.query_params.get(name, "")
    if not 0 < len(text) <= _LONGEST or "\0" in text:
        raise BadQuestionError(f"`{name}` is missing, or too long", fix="give the table and the id of a row")
    return text


async def _answer(question: Callable[[], object]) -> Response:
    return _json(await anyio.to_thread.run_sync(question))


def _json(answer: object) -> Response:
    return Response(orjson.dumps(answer), media_type="application/json", headers={"cache-control": "no-store"})
