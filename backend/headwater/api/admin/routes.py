"""All admin routes: what is asked at which path, and what it can go wrong with."""

from __future__ import annotations

from collections.abc import Iterator

from headwater.api.admin.errors import InvalidRulesError, NotThereError
from headwater.api.admin.guard import AdminRoutes
from headwater.api.admin.route import AdminRoute
from headwater.api.admin.settings import AdminSettings
from headwater.api.admin.status import StatusDesk
from headwater.api.admin.versions import VersionsDesk
from headwater.api.admin.work import AdminThreads
from headwater.storage.contract.store import StoreReader

OURS = "/api/headwater/v1"


def admin_routes(settings: AdminSettings, reader: StoreReader) -> list[AdminRoute]:
    """Every route there is behind the guard."""
    return [*_ours(settings, reader)]


def guarded(settings: AdminSettings, reader: StoreReader, threads: AdminThreads) -> AdminRoutes:
    """The routes behind their guard."""
    routes = [route.mounted(threads) for route in admin_routes(settings, reader)]
    return AdminRoutes(settings.tokens, routes, settings.port)


def _ours(settings: AdminSettings, reader: StoreReader) -> Iterator[AdminRoute]:
    status, versions = StatusDesk(settings, reader), VersionsDesk(settings)
    yield AdminRoute("GET", "/api/admin/v1/status", status.status)
    yield AdminRoute("GET", f"{OURS}/versions", versions.versions)
    yield AdminRoute("GET", f"{OURS}/versions/{{id}}", versions.text, (NotThereError,))
    yield AdminRoute("POST", f"{OURS}/deploy", versions.deploy, (InvalidRulesError,), yaml="content")
    yield AdminRoute("POST", f"{OURS}/rollback", versions.roll_back, (InvalidRulesError, NotThereError))
