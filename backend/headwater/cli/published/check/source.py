"""What becomes of the source: its settings, its publication, and the slot of the old service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import psycopg

from headwater.cli.published.check.result import Fate, Outcome
from headwater.errors import HeadwaterError
from headwater.source.catalog.publications import load_publications
from headwater.source.connect import SourceSettings, connect, source_errors
from headwater.source.readiness.checks import publication_findings, server_findings, source_findings
from headwater.source.readiness.finding import Finding
from headwater.source.slot import slot_name
from headwater_rules.plan import TablePattern

PUBLICATION = "powersync"
"""What the published service has its users make."""

_SLOTS = """
select slot_name::text, active from pg_replication_slots
where database = current_database() and slot_type = 'logical' and not temporary
  and (starts_with(slot_name, 'powersync_') or starts_with(slot_name, %s)) and slot_name <> all(%s)
order by slot_name
"""


def source_outcomes(
    settings: SourceSettings, tables: Sequence[TablePattern] | None, noted_slot: str = ""
) -> list[Outcome]:
    """The source, for the tables of the sync config; None if they are not known. `noted_slot` is that of our store."""
    try:
        with connect(settings, application_name="headwater migrate check") as conn, source_errors(settings):
            found = [*_readiness(conn, settings, tables), *_former_slots(conn, settings, noted_slot)]
    except HeadwaterError as error:
        return [Outcome(Fate.CHANGE, "source", f"[{error.code}] {error.what}", error.fix)]
    return found


def _readiness(
    conn: psycopg.Connection, settings: SourceSettings, tables: Sequence[TablePattern] | None
) -> Iterator[Outcome]:
    known = load_publications(conn, (*settings.publications, PUBLICATION))
    if PUBLICATION in known and not any(name in known for name in settings.publications):
        lacking = ", ".join(settings.publications)
        what = f'the database has the publication "{PUBLICATION}", and lacks what the connection names: {lacking}'
        fix = f"set publications: [{PUBLICATION}] in the connection, or make our own: `headwater source prepare`"
        yield Outcome(Fate.CHANGE, "source", what, fix)
        settings = replace(settings, publications=(PUBLICATION,))
    findings = _findings(conn, settings, tables)
    for each in findings:
        untold = "; ".join(statement for statement in each.sql if statement not in each.fix)
        fate = Fate.CHANGE if each.fatal else Fate.NOTE
        yield Outcome(fate, "source", f"[{each.code}] {each.what}", f"{each.fix}: {untold}" if untold else each.fix)
    if not any(each.fatal for each in findings):
        rights = "settings, rights" if tables is not None else "settings"
        published = ", ".join(settings.publications)
        yield Outcome(Fate.TAKEN, "source", f"{settings.address}: {rights} and the publication {published}")
    if tables is None:
        what = "its tables, and the right to read them, are looked at once there are rules that can be read"
        yield Outcome(Fate.NOTE, "source", what)


def _findings(
    conn: psycopg.Connection, settings: SourceSettings, tables: Sequence[TablePattern] | None
) -> list[Finding]:
    if tables is not None:
        return source_findings(conn, settings, tables)
    return [*server_findings(conn, settings), *publication_findings(conn, settings)]


def _former_slots(conn: psycopg.Connection, settings: SourceSettings, noted: str) -> Iterator[Outcome]:
    """The old service names its slots as slot_name_prefix says, and so do we: ours are left out."""
    own = [slot_name(settings), noted]
    for name, active in conn.execute(_SLOTS, [settings.slot_prefix, own]).fetchall():
        reading = "is read by the old service" if active else "is read by nobody, and keeps the database's log"
        fix = f"when the old service is gone for good: SELECT pg_drop_replication_slot('{name}')"
        yield Outcome(Fate.NOTE, "source", f"the slot {name} {reading}; Headwater makes one of its own beside it", fix)
