"""The values of a request in expressions, which streams and bucket definitions name differently."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from sqlglot import exp

from headwater_rules.compiler.fragment import ExprKind, Frag, build, request_value
from headwater_rules.compiler.functions import json_access, quoted, wrong_call
from headwater_rules.plan import RequestInput


class RequestNames(Enum):
    """How a query names request values, if it can."""

    STREAM = "auth, connection and subscription"
    PARAMETERS = "request, token_parameters and user_parameters"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Semantics:
    """The meaning of the SQL of one query.

    `fixed_paths` is the option `fixed_json_extract`: a JSON path without `$` is one key, and a JSON null is null.
    """

    edition: int
    fixed_paths: bool
    requests: RequestNames = RequestNames.STREAM

    @property
    def null_differs(self) -> bool:
        """Whether null passes `!=`."""
        return self.edition >= 3

    @property
    def star_is_all(self) -> bool:
        """Whether `*` includes columns that begin with `_`, and overrides columns selected before it."""
        return self.edition >= 3

    @property
    def empty_subscription(self) -> bool:
        """Whether a subscription without parameters has an empty object rather than null."""
        return self.edition == 2

    def naming(self, requests: RequestNames) -> Semantics:
        """The same meaning with other names for request values."""
        return replace(self, requests=requests)


_SCHEMAS = {
    RequestNames.STREAM: {
        "auth": RequestInput.CLAIMS, "connection": RequestInput.CONNECTION, "subscription": RequestInput.SUBSCRIPTION,
    },
    RequestNames.PARAMETERS: {"request": RequestInput.CONNECTION},
    RequestNames.NONE: {},
}  # fmt: skip
_COLUMNS = {
    "token_parameters": (RequestInput.CLAIMS, '$."parameters"'),
    "user_parameters": (RequestInput.CONNECTION, "$"),
}
_CALLED = {
    RequestNames.STREAM: "values of the request are called `auth.…`, `connection.…` and `subscription.…`",
    RequestNames.PARAMETERS: "values of the request are called `request.user_id()`, `request.jwt()` and "
    "`request.parameters()`",
    RequestNames.NONE: "select it in a query under `parameters`, and compare with `bucket.…` here",
}

_ELSEWHERE = {"jwt": "write `auth.parameters()`", **dict.fromkeys(("uid", "sub"), "write `auth.user_id()`")}

REQUEST_SCHEMAS = frozenset(schema for schemas in _SCHEMAS.values() for schema in schemas)
"""The prefixes of functions for request values, anywhere in a config."""


def is_request_table(name: str, semantics: Semantics) -> bool:
    """Whether `name.column` is a request value."""
    return name in _COLUMNS and semantics.requests is RequestNames.PARAMETERS


def request_call(schema: str, call: exp.Anonymous, semantics: Semantics, node: exp.Expr) -> Frag:
    """The value of `schema.function(…)`. Raises RuleError when this kind of query has no such function."""
    name, arguments = call.name.lower(), call.expressions
    source = _SCHEMAS[semantics.requests].get(schema)
    if source is None:
        raise wrong_call(f"`{schema}.{name}` is not available in this query", node, _CALLED[semantics.requests])
    if name == "user_id" and not arguments and schema in {"auth", "request"}:
        return request_value(RequestInput.USER_ID, ExprKind.ANY, node)
    if name == "jwt" and not arguments and schema == "request":
        return _whole(RequestInput.CLAIMS, semantics, node)
    if name == "parameters" and not arguments:
        return _whole(source, semantics, node)
    if name == "parameter" and len(arguments) == 1:
        return json_access(_whole(source, semantics, node), arguments[0], "->>", node, fixed=semantics.fixed_paths)
    if schema == "auth" and name in _ELSEWHERE:
        raise wrong_call(f"unknown use of `auth.{name}`", node, _ELSEWHERE[name])
    user = f"`{schema}.user_id()`, " if schema in {"auth", "request"} else ""
    token = "`request.jwt()`, " if schema == "request" else ""
    hint = f"there are {user}{token}`{schema}.parameters()` and `{schema}.parameter('name')`"
    raise wrong_call(f"unknown use of `{schema}.{name}`", node, hint)


def request_column(table: str, name: str, node: exp.Expr) -> Frag:
    """`token_parameters.user_id` is the claim `sub`, other columns of it are claims under `parameters`;
    `user_parameters.x` is a client parameter."""
    if table == "token_parameters" and name == "user_id":
        return request_value(RequestInput.USER_ID, ExprKind.ANY, node)
    source, path = _COLUMNS[table]
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    path = quoted(f'{path}."{escaped}"')
    return build(ExprKind.ANY, node, "(", request_value(source, ExprKind.TEXT, node), f" ->> {path})")


def _whole(source: RequestInput, semantics: Semantics, node: exp.Expr) -> Frag:
    whole = request_value(source, ExprKind.TEXT, node)
    if source is RequestInput.SUBSCRIPTION and semantics.empty_subscription:
        return build(ExprKind.TEXT, node, "ifnull(", whole, ", '{}')")
    return whole
