"""An admin route is a function from typed data to typed data. This module turns requests into calls of it.

The types are read from the function's annotations, so that the description of the routes (`openapi`) always fits them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import get_type_hints

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.api.admin.errors import InvalidAdminRequestError, TooLargeAnswerError
from headwater.api.admin.guard import PREFIX
from headwater.api.admin.work import AdminThreads
from headwater.api.errors import ApiError, UnsupportedMediaTypeError
from headwater.api.http.requests import read_body

MOST_BYTES = 16 * 1024 * 1024
"""The most bytes of an answer."""

YAML = ("application/yaml", "application/x-yaml", "text/yaml")


@dataclass(frozen=True, slots=True)
class Nothing:
    """An empty body or answer."""


@dataclass(frozen=True)
class AdminRoute:
    """One admin route.

    `answer` is the handler. It takes one argument or none, and runs in a thread unless it is a coroutine function. Its
    argument is read from the JSON body of a POST, and from path and query of a GET. A request with unknown fields is
    refused. `errors` are the errors that it may raise, for the description. A `bare` answer is not wrapped in `data`, a
    `pretty` one is indented. With `yaml`, the body may also be YAML text, which becomes the field of that name.
    `events` is the type of each event's data, if the answer is a stream of events.
    """

    method: str
    path: str
    answer: Callable[..., object]
    errors: tuple[type[ApiError], ...] = ()
    bare: bool = False
    pretty: bool = False
    yaml: str = ""
    events: type | None = None

    @cached_property
    def takes(self) -> type | None:
        """The type of the argument. That of a POST whose handler takes none is Nothing."""
        names = list(inspect.signature(self.answer).parameters)
        found: type | None = Nothing if self.method == "POST" else None
        return get_type_hints(self.answer)[names[0]] if names else found

    @cached_property
    def gives(self) -> type:
        """The type of the answer."""
        found: type = get_type_hints(self.answer)["return"]
        return found

    def mounted(self, threads: AdminThreads) -> Route:
        """The Starlette route, for AdminRoutes."""

        async def respond(request: Request) -> Response:
            arguments: tuple[object, ...] = ()
            if self.takes is not None:
                argument = await self._argument(request, self.takes)
                arguments = () if isinstance(argument, Nothing) else (argument,)
            if inspect.iscoroutinefunction(self.answer):
                return self._response(await self.answer(*arguments))
            return await threads.run(lambda: self._response(self.answer(*arguments)))

        return Route(self.path.removeprefix(PREFIX), respond, methods=[self.method])

    async def _argument(self, request: Request, kind: type) -> object:
        if self.method == "GET":
            given: object = {**request.query_params, **request.path_params}
            return _converted(given, kind, strict=False)
        body = await read_body(request)
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if self.yaml and media in YAML:
            return _converted({self.yaml: _text(body)}, kind, strict=True)
        if media not in {"", "application/json"}:
            raise UnsupportedMediaTypeError(f"a body of type {media!r} is not read here", fix="send application/json")
        return _converted(_parsed(body), kind, strict=True)

    def _response(self, answer: object) -> Response:
        if isinstance(answer, Response):
            return answer
        body = msgspec.json.encode(answer if self.bare else {"data": answer})
        if len(body) > MOST_BYTES:
            raise TooLargeAnswerError(
                f"the answer has {len(body):,} bytes, and at most {MOST_BYTES:,} are allowed", fix="ask for fewer rows"
            )
        return Response(msgspec.json.format(body) if self.pretty else body, media_type="application/json")


def _parsed(body: bytes) -> object:
    try:
        return orjson.loads(body or b"{}")
    except ValueError:
        raise InvalidAdminRequestError("the body is not valid JSON", fix="send a JSON object") from None


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise InvalidAdminRequestError("the body is not UTF-8 text", fix="send it as UTF-8") from None


def _converted(given: object, kind: type, *, strict: bool) -> object:
    try:
        found: object = msgspec.convert(given, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise InvalidAdminRequestError(f"the request has the wrong form: {error}", fix=_SEE) from None
    unknown = sorted(_unread(given, msgspec.to_builtins(found)))
    if unknown:
        raise InvalidAdminRequestError(f"the request has unknown fields: {', '.join(unknown)}"[:200], fix=_SEE)
    return found


_SEE = "see openapi.json"


def _unread(given: object, read: object, path: str = "") -> Iterator[str]:
    """The fields that were given and not read, at any depth."""
    if isinstance(given, dict) and isinstance(read, dict):
        for name, value in given.items():
            if name in read:
                yield from _unread(value, read[name], f"{path}{name}.")
            else:
                yield f"{path}{name}"
    elif isinstance(given, list) and isinstance(read, list | tuple):
        for each, found in zip(given, read, strict=False):
            yield from _unread(each, found, path)
