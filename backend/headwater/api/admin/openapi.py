"""Makes the OpenAPI description of all admin routes from the types of their arguments and answers."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import msgspec
from msgspec import Struct
from starlette.responses import Response

from headwater.api.admin.route import BUSY, YAML, AdminRoute, InvalidAdminRequestError
from headwater.api.error_answers import ErrorDetails
from headwater.api.errors import BodyTooLargeError, UnsupportedMediaTypeError
from headwater.api.studio.sessions import COOKIE, REFUSED, ForeignRequestError, ReadOnlyError
from headwater.codes import CODES

_REF = "#/components/schemas/{name}"
_ANYTHING = {"description": "any JSON value"}
Json = dict[str, Any]


class ErrorResponse(Struct, frozen=True):
    """The answer to a request that was refused, or failed."""

    error: ErrorDetails


def document(routes: Sequence[AdminRoute]) -> Json:
    """An OpenAPI 3.1 document of these routes."""
    types: list[type] = [ErrorResponse]
    known = (each for route in routes for each in (route.takes, route.gives, route.events))
    types += [each for each in known if each is not None and _is_json(each)]
    schemas, components = msgspec.json.schema_components(
        list(dict.fromkeys(types)), ref_template=_REF, schema_hook=_hook
    )
    by_type = dict(zip(dict.fromkeys(types), schemas, strict=True))
    paths: dict[str, Json] = defaultdict(dict)
    for route in routes:
        paths[route.path][route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headwater admin API", "version": version("headwater")},
        "security": [{"token": []}, {"session": []}],
        "paths": dict(paths),
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "one of api.tokens; or `Token <t>`"},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "of the studio"},
            },
        },
    }


def _hook(kind: type) -> Json:
    if kind is object:
        return _ANYTHING
    raise NotImplementedError(kind)  # msgspec's way to say that the hook does not know the type


def _is_json(kind: type) -> bool:
    return not (inspect.isclass(kind) and issubclass(kind, Response))


def _operation(route: AdminRoute, schemas: Mapping[type, Json]) -> Json:
    operation: Json = {
        "operationId": "_".join((route.method.lower(), *re.findall(r"[\w-]+", route.path.removeprefix("/api")))),
        "summary": (route.answer.__doc__ or "").strip().splitlines()[0],
        "responses": {"200": _answer(route, schemas), **_refusals(route, schemas)},
    }
    if route.takes is not None and route.method == "GET":
        operation["parameters"] = _parameters(route, route.takes)
    elif route.takes is not None:
        required = any(each.required for each in msgspec.structs.fields(route.takes))
        operation["requestBody"] = {"required": required, "content": _body(route, schemas[route.takes])}
    return operation


def _answer(route: AdminRoute, schemas: Mapping[type, Json]) -> Json:
    if not _is_json(route.gives):
        description = " ".join((route.gives.__doc__ or "").split())
        event = {"schema": {"type": "string"}, "x-event-data": schemas[route.events]} if route.events else {}
        return {"description": description, "content": {"text/event-stream": event}}
    schema = schemas[route.gives]
    if not route.bare:
        schema = {"type": "object", "required": ["data"], "properties": {"data": schema}}
    return {"description": "the answer", "content": {"application/json": {"schema": schema}}}


def _refusals(route: AdminRoute, schemas: Mapping[type, Json]) -> Json:
    codes = [REFUSED, BUSY, ForeignRequestError.code, *route.errors]
    if route.changes:
        codes.append(ReadOnlyError.code)
    if route.takes is not None:
        codes.append(InvalidAdminRequestError.code)
    if route.takes is not None and route.method == "POST":
        codes += [BodyTooLargeError.code, UnsupportedMediaTypeError.code]
    by_status: dict[int, dict[str, str]] = defaultdict(dict)
    for code in codes:
        by_status[CODES[code].status][code] = CODES[code].meaning
    by_status[500] = {"": "The service is not able to answer; its log says why."}
    by_status[503] = {"": "A database that is needed does not answer now."}
    content = {"content": {"application/json": {"schema": schemas[ErrorResponse]}}}
    return {
        str(status): {"description": " ".join(f"{code} {text}".strip() for code, text in texts.items()), **content}
        for status, texts in sorted(by_status.items())
    }


def _parameters(route: AdminRoute, kind: type) -> list[Json]:
    return [
        {
            "name": each.name,
            "in": "path" if f"{{{each.name}}}" in route.path else "query",
            "required": each.required,
            "schema": msgspec.json.schema(each.type, schema_hook=_hook),
        }
        for each in msgspec.structs.fields(kind)
    ]


def _body(route: AdminRoute, schema: Json) -> Json:
    content: Json = {"application/json": {"schema": {**schema, "unevaluatedProperties": False}}}
    if route.yaml:
        content[YAML[0]] = {"schema": {"type": "string"}}
    return content
