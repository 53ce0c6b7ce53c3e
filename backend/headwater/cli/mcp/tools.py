"""The tools: routes of the admin API, with the names and forms that assistants get. Forms come from the service's own
description of its routes, so they fit whatever version it has; a route that it lacks is no tool."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

OPENAPI = "/api/headwater/v1/openapi.json"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Route:
    """A route as a tool. `about` is for the assistant; `writes` says that it changes something."""

    tool: str
    method: str
    path: str
    about: str
    writes: bool = False


_OURS = "/api/headwater/v1"
ROUTES = (
    Route("status", "GET", "/api/admin/v1/status",
          "State of replication by source: lag, slot, findings with their remedy, work in progress; versions served."),
    Route("devices", "GET", f"{_OURS}/clients", "Devices that are connected now."),
    Route("explain_user", "POST", f"{_OURS}/explain/user",
          "What a user's devices are sent now: buckets with reasons, rows and bytes, and why a stream gives nothing."),
    Route("explain_row", "POST", f"{_OURS}/explain/row",
          "Whether a user's devices have a row, by which bucket and since when, or which condition fails. Ask this for "
          "'why does X (not) see Y'."),
    Route("served_rules", "GET", f"{_OURS}/versions", "Versions of the sync config. rules_text gives the text of one."),
    Route("rules_text", "GET", f"{_OURS}/versions/{{id}}", "The text of one version of the sync config."),
    Route("rule_words", "GET", f"{_OURS}/completion",
          "What a sync config may name: the source's tables and columns, functions, values of the request."),
    Route("validate", "POST", f"{_OURS}/validate",
          "All that is wrong with a sync config, with places and fixes, compared with the source's tables. Do this "
          "after each edit."),
    Route("preview", "POST", f"{_OURS}/preview", "Which buckets and rows a client would get by a sync config."),
    Route("compare", "POST", f"{_OURS}/compare",
          "What a client would gain and lose by a sync config, compared with the one that is served."),
    Route("diff", "POST", f"{_OURS}/diff", "What a sync config would change, and what devices would download again."),
    Route("cost", "POST", f"{_OURS}/cost", "What deploying a sync config would cost: rows, devices, bytes, time."),
    Route("parked_uploads", "GET", f"{_OURS}/letters", "Uploads of devices that could not be applied, and why."),
    Route("largest_buckets", "GET", f"{_OURS}/buckets", "The store's largest buckets, definitions, tables, disk use."),
    Route("audits", "GET", f"{_OURS}/audit", "Audits of the last day: whether source and devices' data agree."),
    Route("figures", "GET", f"{_OURS}/series", "Commits, changed rows, devices and lag by minute, up to 24 hours."),
    Route("changes", "GET", f"{_OURS}/changes", "What operators changed through the admin API, when and who."),
    Route("deploy", "POST", f"{_OURS}/deploy",
          "Serve a sync config to all devices. Validate, and look at cost or diff, before.", writes=True),
    Route("rollback", "POST", f"{_OURS}/rollback", "Serve an earlier version of the sync config again.", writes=True),
    Route("retry_uploads", "POST", f"{_OURS}/letters/retry",
          "Apply parked uploads now, each as the user who sent it.", writes=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tool:
    """A route that the service has, and the JSON Schema of its arguments."""

    route: Route
    schema: Json

    @property
    def _in_path(self) -> Sequence[str]:
        return re.findall(r"{(\w+)}", self.route.path)

    def request(self, arguments: Mapping[str, object]) -> tuple[str, Mapping[str, object] | None, object | None]:
        """Path, query and body of the request with these arguments. Raises KeyError for one that is missing in the
        path."""
        if self.route.method == "POST":
            return self.route.path, None, dict(arguments)
        path = self.route.path
        for name in self._in_path:
            path = path.replace(f"{{{name}}}", quote(str(arguments[name]), safe=""))
        query = {name: _text(value) for name, value in arguments.items() if name not in self._in_path}
        return path, query, None


def tools_of(document: Json) -> Iterator[Tool]:
    """The tools for the routes in an OpenAPI document."""
    paths, schemas = document["paths"], document["components"]["schemas"]
    for route in ROUTES:
        operation = paths.get(route.path, {}).get(route.method.lower())
        if operation is not None:
            yield Tool(route, _schema(operation, schemas))


def undescribed(*, writes: bool) -> Iterator[Tool]:
    """The tools with forms that say nothing, for as long as the service does not describe its routes."""
    for route in ROUTES:
        if writes or not route.writes:
            yield Tool(route, {"type": "object"})


def _schema(operation: Json, schemas: Json) -> Json:
    """The schema of an operation's arguments, an object that stands by itself."""
    body = operation.get("requestBody")
    if body is not None:
        written = body["content"]["application/json"]["schema"]
        found: Json = {**schemas[written["$ref"].rpartition("/")[2]]}
        found["additionalProperties"] = False
    else:
        parameters = operation.get("parameters", [])
        found = {
            "type": "object",
            "properties": {each["name"]: each["schema"] for each in parameters},
            "required": [each["name"] for each in parameters if each["required"]],
            "additionalProperties": False,
        }
    defined: Json = {}
    found = _moved(found, schemas, defined)
    return {**found, "$defs": defined} if defined else found


_COMPONENTS, _DEFS = "#/components/schemas/", "#/$defs/"


def _moved(schema: Any, schemas: Json, defined: Json) -> Any:
    """The same with references to `defined`, to which what is referred to is added."""
    if isinstance(schema, list):
        return [_moved(each, schemas, defined) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, schemas, defined) for key, value in schema.items()}
    name = str(schema.get("$ref", "")).removeprefix(_COMPONENTS)
    if name in schemas:
        moved["$ref"] = _DEFS + name
        if name not in defined:
            defined[name] = {}  # it may refer to itself
            defined[name] = _moved(schemas[name], schemas, defined)
    return moved


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
