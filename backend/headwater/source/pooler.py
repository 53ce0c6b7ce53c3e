"""Connection poolers, by the names that hosting companies give them: what to connect to instead.

A pooler lends one session of Postgres to many clients in turn. It has no replication, and drops session settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pooler:
    """A pooler's name, and how to reach the same database without it."""

    name: str
    direct: str


@dataclass(frozen=True, slots=True)
class _Address:
    host: str
    port: int
    user: str


def known_pooler(host: str, port: int, user: str) -> Pooler | None:
    """The pooler that a hosting company runs at this address, None if none is known to."""
    at = _Address(host.lower().rstrip("."), port, user)
    return next((found for each in _KNOWN if (found := each(at)) is not None), None)


_IPV6 = "which is reached by IPv6, or by IPv4 with that add-on"


def _supabase(at: _Address) -> Pooler | None:
    if at.host.endswith(".pooler.supabase.com"):
        role, _, project = at.user.rpartition(".")  # the pooler finds the project by the user's name
        direct = f"db.{project if role else 'PROJECT'}.supabase.co"
        return Pooler("Supabase's pooler", f"{direct}, port 5432, user {role or at.user}, {_IPV6}")
    if re.fullmatch(r"db\.[a-z0-9]+\.supabase\.co", at.host) and at.port == 6543:
        return Pooler("Supabase's pooler", f"{at.host}, port 5432, {_IPV6}")
    return None


def _neon(at: _Address) -> Pooler | None:
    found = re.fullmatch(r"(ep-[a-z0-9-]+)-pooler(\..+\.neon\.tech)", at.host)
    return Pooler("Neon's pooler", "".join(found.groups())) if found else None


_RDS_PROXY = re.compile(
    r"[^.]+\.(?:endpoint\.)?proxy-[a-z0-9]+"
    r"(\.[^.]+\.rds\.amazonaws\.com|\.rds\.[^.]+\.amazonaws\.com\.cn)"  # China has them the other way round
)


def _rds(at: _Address) -> Pooler | None:
    found = re.fullmatch(_RDS_PROXY, at.host)
    if found is None:
        return None
    zone = found[1]
    return Pooler("RDS Proxy", f"the instance, NAME.ID{zone}, or with Aurora the writer, NAME.cluster-ID{zone}")


def _by_port(name: str, zone: str, pooled: int, direct: int) -> Callable[[_Address], Pooler | None]:
    """A pooler on the database's own host."""

    def known(at: _Address) -> Pooler | None:
        return Pooler(name, f"{at.host}, port {direct}") if at.host.endswith(zone) and at.port == pooled else None

    return known


_KNOWN = (
    _supabase,
    _neon,
    _rds,
    _by_port("Azure's PgBouncer", ".postgres.database.azure.com", 6432, 5432),
    _by_port("DigitalOcean's connection pool", ".db.ondigitalocean.com", 25061, 25060),
    _by_port("Crunchy Bridge's PgBouncer", ".db.postgresbridge.com", 5431, 5432),
)
