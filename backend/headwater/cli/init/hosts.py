"""Recognises where a database is hosted and what made its tables, and says what is different there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import psycopg

from headwater.source.connect import SourceSettings, connect, connection_error
from headwater_rules.propose.outline import OutlinedTable

_FACTS = """
select array(select rolname::text from pg_roles where rolname in ('supabase_admin', 'rds_superuser', 'neon_superuser')),
  current_setting('wal_level'),
  (select rolsuper or rolreplication or exists (select from pg_roles r where r.rolname = 'rds_replication'
     and pg_has_role(current_user, r.oid, 'MEMBER')) from pg_roles where rolname = current_user)
"""

WRITER: Final = "headwater_writer"
"""The role that uploads write as, where the host has none for it."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host or a framework: its name, the page about it, the role that uploads write as, and what to know. `project`
    is that of Supabase's cloud; `local` is Supabase on this machine."""

    name: str
    page: str
    notes: tuple[str, ...]
    role: str = WRITER
    project: str | None = None
    local: bool = False


def recognised(source: SourceSettings, tables: Sequence[OutlinedTable], *, near: bool) -> tuple[Host, ...]:
    """What is known of this database: by the name of its host, by roles of the server, by tables. `near`: the server is
    on this machine or in a network of one's own. Raises SourceUnreachableError or SourceRefusedError."""
    with connect(source) as conn:
        try:
            found = conn.execute(_FACTS).fetchone()
        except psycopg.Error as error:
            raise connection_error(source, error) from error
    assert found is not None
    roles, wal_level, replicates = found
    host = by_name(source) or _by_role(source, roles, near=near)
    named = () if host is None else (_with_lacks(host, logical=wal_level == "logical", replicates=replicates),)
    return (*named, *((_DJANGO,) if any(table.name == "django_migrations" for table in tables) else ()))


def by_name(source: SourceSettings) -> Host | None:
    """The host that an address belongs to."""
    name = source.host.lower().rstrip(".")
    if found := re.fullmatch(r"db\.([a-z0-9]+)\.supabase\.co", name):
        return _supabase(found[1], local=False)
    if name.endswith(".neon.tech"):
        return _NEON
    if re.search(r"\.rds\.amazonaws\.com$|\.rds\.[^.]+\.amazonaws\.com\.cn$", name):
        return _RDS
    return None


def _by_role(source: SourceSettings, roles: Sequence[str], *, near: bool) -> Host | None:
    """Under another name, such as one of one's own or of a tunnel."""
    if "supabase_admin" in roles:
        return _supabase(None, local=near)
    if "neon_superuser" in roles:
        return _NEON
    return _RDS if "rds_superuser" in roles else None


def _with_lacks(host: Host, *, logical: bool, replicates: bool) -> Host:
    lacks = [] if logical else [f"wal_level is not `logical` yet: {_LOGICAL[host.name]}"]
    lacks += [] if replicates else [f"this role may not replicate: {_REPLICATE[host.name]}"]
    return Host(host.name, host.page, (*lacks, *host.notes), host.role, host.project, host.local)


def _supabase(project: str | None, *, local: bool) -> Host:
    return Host(
        "Supabase",
        "docs/postgres-supabase.md",
        (
            "users are auth.users, and the tokens of supabase.auth are accepted as they are",
            "uploads write as `authenticated`, under the policies that your tables have",
            "Realtime uses replication slots of the same server: `headwater doctor` says how many are free",
        ),
        "authenticated",
        project,
        local,
    )


_NEON: Final = Host(
    "Neon",
    "docs/postgres-neon.md",
    (
        "a connection that follows the log keeps the compute awake, so it is never suspended",
        "a slot that nobody reads for about 40 hours is dropped; then all tables are compared",
    ),
)
_RDS: Final = Host(
    "Amazon RDS",
    "docs/postgres-rds.md",
    (
        "there is no superuser: the role that owns the tables runs `headwater source prepare`",
        "set max_slot_wal_keep_size in the parameter group: a stopped Headwater lets the log grow to the disk's end",
    ),
)
_DJANGO: Final = Host(
    "Django",
    "docs/postgres-django.md",
    (
        "tokens carry the id of the user model's row as `sub`",
        "Django's ids are numbers, which Postgres counts: devices add rows only to tables whose key is a UUIDField",
    ),
)
_LOGICAL: Final = {
    "Supabase": "set it to `logical` in postgresql.conf, and restart",
    "Neon": "enable it in the project's settings, Logical Replication",
    "Amazon RDS": "set rds.logical_replication = 1 in the parameter group, and reboot",
}
_REPLICATE: Final = {
    "Supabase": "connect as `postgres`, or as a role that it gave REPLICATION",
    "Neon": "use a role that was made in the console, or one that neon_superuser gave REPLICATION",
    "Amazon RDS": "run GRANT rds_replication TO it, as the main user",
}
