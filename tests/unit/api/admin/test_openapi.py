"""The description of the admin routes is whole and true: every route is in it, and what it says of answers holds for
whatever anybody sends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from starlette.routing import Mount, Route

from tests.support.fix_admin import OPENAPI, AdminEndpoint

ENDLESS = "/api/headwater/v1/progress"


@pytest.fixture
def described(admin: AdminEndpoint) -> dict[str, Any]:
    found: dict[str, Any] = admin.http.get(OPENAPI).json()
    return found


def test_every_route_is_described(admin: AdminEndpoint, described: dict[str, Any]) -> None:
    (mount,) = [route for route in admin.app.routes if isinstance(route, Mount) and route.path == "/api"]
    routes = {
        (f"/api{route.path}", method.lower())
        for route in mount.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert {(path, method) for path, methods in described["paths"].items() for method in methods} == routes
    operations = [operation for methods in described["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["summary"].endswith(".") for operation in operations)
    assert all({"200", "401", "429"} <= operation["responses"].keys() for operation in operations)


def test_schemas(described: dict[str, Any]) -> None:
    import schemathesis  # half a second of each process that collects tests, were it above

    for schema in described["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    schemathesis.openapi.from_dict(described).validate()


def fuzz(admin: AdminEndpoint, described: dict[str, Any], examples: int) -> None:
    """Send whatever the description allows, and what it does not: every answer is one that it names."""
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.core.result import Ok
    from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

    # The token is always ours; and a text that has the right form may still be no sync config
    not_meant = [ignored_auth, positive_data_acceptance]
    schema = schemathesis.openapi.from_dict(described)
    operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    assert len(operations) > 15
    for operation in operations:
        if operation.path == ENDLESS:
            continue

        @settings(max_examples=examples, deadline=None, phases=[Phase.explicit, Phase.generate], database=None,
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            response = case.call(
                base_url=f"http://127.0.0.1:{admin.port}", headers=dict(admin.http.headers), timeout=60
            )
            away = [not_a_server_error] if response.status_code == 503 else []  # the source answers nobody
            case.validate_response(response, excluded_checks=[*not_meant, *away])

        ask()


def test_answers_as_described(admin: AdminEndpoint, described: dict[str, Any]) -> None:
    fuzz(admin, described, 6)


@pytest.mark.long
def test_answers_as_described_for_long(admin: AdminEndpoint, described: dict[str, Any]) -> None:
    fuzz(admin, described, 200)
