"""The values of a request in expressions, which streams and bucket definitions name differently."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from sqlglot import exp

from headwater_rules.compiler.fragment import ExprKind, Frag, build, request_value
from headwater_rules.compiler.functions import json_access, quoted, wrong_call
from headwater_rules.errors import RuleCode, RuleError
from headwater_rules.plan import RequestInput
from headwater_rules.text.sqltext import edit_of, error_at, text_of


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

_CALLED_APART = r"\s*\(\s*\)"

_SAME: dict[RequestNames, dict[str, str]] = {
    RequestNames.STREAM: {
        "request.user_id": "auth.user_id()", "request.jwt": "auth.parameters()",
        "request.parameters": "connection.parameters()", "token_parameters.user_id": "auth.user_id()",
        "auth.jwt": "auth.parameters()", "auth.uid": "auth.user_id()", "auth.sub": "auth.user_id()",
    },
    RequestNames.PARAMETERS: {
        "auth.user_id": "request.user_id()", "auth.uid": "request.user_id()", "auth.sub": "request.user_id()",
        "auth.jwt": "request.jwt()", "auth.parameters": "request.jwt()",
        "connection.parameters": "request.parameters()",
    },
    RequestNames.NONE: {},
}  # fmt: skip
"""What one kind of query calls the values that another kind, or another service, calls so."""

_ALL_NAMES = frozenset(
    {"auth", "connection", "subscription", "request", "token_parameters", "user_parameters", "bucket"}
)

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
        instead = "" if arguments else _SAME[semantics.requests].get(f"{schema}.{name}", "")
        hint = f"write `{instead}`" if instead else _CALLED[semantics.requests]
        message = f"`{schema}.{name}` is not available in this query"
        raise wrong_call(message, node, hint, edit_of(node, instead, _CALLED_APART) if instead else None)
    if name == "user_id" and not arguments and schema in {"auth", "request"}:
        return request_value(RequestInput.USER_ID, ExprKind.ANY, node)
    if name == "jwt" and not arguments and schema == "request":
        return _whole(RequestInput.CLAIMS, semantics, node)
    if name == "parameters" and not arguments:
        return _whole(source, semantics, node)
    if name == "parameter" and len(arguments) == 1:
        return json_access(_whole(source, semantics, node), arguments[0], "->>", node, fixed=semantics.fixed_paths)
    instead = "" if arguments else _SAME[semantics.requests].get(f"{schema}.{name}", "")
    if not instead and name == "parameters" and len(arguments) == 1:
        instead = f"{schema}.parameter({text_of(node).source_of(arguments[0])})"
    if instead:
        raise wrong_call(
            f"unknown use of `{schema}.{name}`", node, f"write `{instead}`", edit_of(node, instead, _CALLED_APART)
        )
    user = f"`{schema}.user_id()`, " if schema in {"auth", "request"} else ""
    token = "`request.jwt()`, " if schema == "request" else ""
    hint = f"there are {user}{token}`{schema}.parameters()` and `{schema}.parameter('name')`"
    raise wrong_call(f"unknown use of `{schema}.{name}`", node, hint)


def misused_name(table: str, name: str, semantics: Semantics, node: exp.Expr) -> RuleError | None:
    """The error for `auth.user_id` and similar names, which are written like columns where a call is meant, or which
    another kind of query has; None for the name of a table."""
    if table not in _ALL_NAMES:
        return None
    kind = semantics.requests
    message = f"`{table}.{name}` is no column: values of the request are calls here"
    if table == "bucket":
        message = "`bucket` has the parameters of a bucket definition, and this query belongs to none"
    if kind is RequestNames.NONE:
        message = f"`{table}.{name}` is not available in this query"
        return error_at(RuleCode.UNKNOWN_NAME, message, node, _CALLED[kind])
    instead, certain = _call_for(table, name, kind)
    edit = edit_of(node, instead) if certain else None
    return error_at(RuleCode.UNKNOWN_NAME, message, node, f"write `{instead}`", edit=edit)


def _call_for(table: str, name: str, kind: RequestNames) -> tuple[str, bool]:
    """The call that gives a value which is written as the column `table.name`, and whether it is certainly meant."""
    if same := _SAME[kind].get(f"{table}.{name}"):
        return same, True
    schemas = _SCHEMAS[kind]
    if table in schemas and name in {"parameters", *(("user_id",) if table in {"auth", "request"} else ())}:
        return f"{table}.{name}()", True
    key = quoted(name)
    if kind is RequestNames.PARAMETERS:
        if table == "request" and name == "jwt":
            return "request.jwt()", True
        if table == "auth":
            return f"request.jwt() ->> {key}", True
        return f"request.parameters() ->> {key}", table in {"connection", "request"}
    if table == "token_parameters":
        return f"auth.parameters() -> 'parameters' ->> {key}", True
    if table == "user_parameters":
        return f"connection.parameter({key})", True
    if table in schemas:
        return f"{table}.parameter({key})", True
    return ("auth.user_id()" if name == "user_id" else f"subscription.parameter({key})"), name == "user_id"


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
