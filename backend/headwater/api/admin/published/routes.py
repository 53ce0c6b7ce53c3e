"""The published paths."""

from __future__ import annotations

from collections.abc import Iterator

from headwater.api.admin.errors import DeployBusyError, DeployClosedError, InvalidRulesError, NothingServedError
from headwater.api.admin.published.deploys import DeploysDesk
from headwater.api.admin.published.diagnostics import DiagnosticsDesk
from headwater.api.admin.published.sql import SqlDesk
from headwater.api.admin.route import AdminRoute
from headwater.api.admin.settings import AdminSettings
from headwater.storage.contract.reader import StoreReader

_ADMIN, _RULES = "/api/admin/v1", "/api/sync-rules/v1"


def published_routes(settings: AdminSettings, reader: StoreReader) -> Iterator[AdminRoute]:
    """All of them."""
    desk, deploys, sql = DiagnosticsDesk(settings, reader), DeploysDesk(settings), SqlDesk(settings)
    again = (DeployBusyError, NothingServedError)
    yield AdminRoute("POST", f"{_ADMIN}/diagnostics", desk.diagnostics)
    yield AdminRoute("POST", f"{_ADMIN}/schema", desk.schema)
    yield AdminRoute("POST", f"{_ADMIN}/validate", desk.validate)
    yield AdminRoute("POST", f"{_ADMIN}/reprocess", desk.reprocess, again)
    yield AdminRoute("POST", f"{_ADMIN}/execute-sql", sql.execute)
    yield AdminRoute("POST", f"{_RULES}/deploy", deploys.deploy, (DeployClosedError, InvalidRulesError), yaml="content")
    yield AdminRoute("POST", f"{_RULES}/validate", deploys.validate, bare=True, pretty=True, yaml="content")
    yield AdminRoute("POST", f"{_RULES}/reprocess", deploys.reprocess, again)
    yield AdminRoute("GET", f"{_RULES}/current", deploys.current, (NothingServedError,), pretty=True)
