"""Checks what a source must allow before it is read: settings, rights, slots, publications. Findings name the
remedy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import psycopg
from psycopg import sql

from headwater.errors import HeadwaterError
from headwater.oplog.change import ReplicaIdentity
from headwater.source.catalog.publications import load_publications
from headwater.source.catalog.published import PublishedTable, published_tables, unsent_key_error
from headwater.source.catalog.schema import unpublished_findings
from headwater.source.connect import SourceSettings
from headwater.source.readiness.finding import NAMED, Finding, Reading, shortened, unreadable
from headwater.source.slot import slot_name, slot_status, temporary_slot_name
from headwater_rules.evaluate.binding import lacking
from headwater_rules.plan import Deciding, TablePattern

_RESTART = " and restart Postgres"
_HOSTED = "; a hosted database has a setting of its own, see docs/service-config.md"
SPARED = frozenset({"HW_2018", "HW_2030", "HW_R302", "PSYNC_S1145"})
"""Codes of fatal findings that concern one table only: all other tables are served."""
SLOTS = 2  # the stream's own, and a temporary one that a re-sync needs


class SourceNotReadyError(HeadwaterError):
    """The source does not allow replication yet. Lists everything that is missing, not only the first."""

    code = "HW_2003"

    def __init__(self, where: str, findings: tuple[Finding, ...]) -> None:
        super().__init__("the source is not ready for replication", where)
        self.args = (where, findings)  # what pickle replays
        self.findings = findings

    def __str__(self) -> str:
        if len(self.findings) == 1:
            return f"{self.findings[0]} (source {self.where})"
        lines = "".join(f"\n  {finding}" for finding in self.findings)
        return f"[{self.code}] {self.what} ({self.where}):{lines}"


def source_findings(
    conn: psycopg.Connection,
    settings: SourceSettings,
    patterns: Sequence[TablePattern] | None = None,
    deciding: Deciding = (),
) -> list[Finding]:
    """Everything that replication needs and the source lacks, publications and their tables included.

    With `patterns`, only matching tables are checked, and there are findings for those that are not published, and for
    columns that are not there and yet are `deciding` who gets rows.
    """
    findings = [*server_findings(conn, settings), *catalog_findings(conn, settings, patterns, deciding)]
    return list(dict.fromkeys(findings))


def catalog_findings(
    conn: psycopg.Connection,
    settings: SourceSettings,
    patterns: Sequence[TablePattern] | None,
    deciding: Deciding,
    oids: Collection[int] = (),
) -> list[Finding]:
    """What `source_findings` says of publications and tables: of those that match, and of those with these oids."""
    if missing := publication_findings(conn, settings):
        return missing
    tables = published_tables(conn, settings.publications)
    wanted = [table for table in tables if table.relation.oid in oids or _wanted(table, settings.tag, patterns)]
    return [
        *table_findings(conn, wanted),
        *frozen_findings(conn, tables, wanted),
        *unpublished_findings(conn, settings, patterns or ()),
        *undecided_findings(settings, tables, deciding),
    ]


def raise_if_fatal(findings: Sequence[Finding], settings: SourceSettings) -> list[Finding]:
    """The findings, if all are warnings; else raises SourceNotReadyError with the fatal ones."""
    fatal = tuple(finding for finding in findings if finding.fatal)
    if fatal:
        raise SourceNotReadyError(settings.address, fatal)
    return list(findings)


def server_findings(conn: psycopg.Connection, settings: SourceSettings) -> list[Finding]:
    """Version, wal_level, the right to replicate, and free slots and WAL senders."""
    if conn.info.server_version < 14_00_00:
        return [
            Finding("HW_2011", f"Postgres {conn.info.server_version // 10000} is too old", "upgrade it to 14 or newer")
        ]
    ((is_standby, level, encoding, may_replicate),) = conn.execute(_SERVER).fetchall()
    if is_standby:
        fix = "set hostname in replication.connections to the primary"
        return [Finding("HW_2012", "the server is a standby, where no publication can be made", fix)]
    findings = []
    if level != "logical":
        what = f"wal_level is {level}, and logical decoding needs logical"
        findings.append(Finding.lacking("HW_2013", what, "ALTER SYSTEM SET wal_level = logical", _RESTART + _HOSTED))
    if encoding == "SQL_ASCII":
        what = "the encoding of the database is SQL_ASCII: rows with text that is not UTF-8 are left out, and logged"
        findings.append(Finding("HW_2031", what, "move to a database of encoding UTF8", fatal=False))
    findings += room_findings(conn, settings)
    if not may_replicate:
        alter = sql.SQL("ALTER ROLE {} REPLICATION").format(sql.Identifier(conn.info.user)).as_string(conn)
        what = f'role "{settings.user}" may not replicate'
        findings.append(Finding.lacking("HW_2016", what, alter, f" as a superuser{_HOSTED}"))
    return findings


def publication_findings(conn: psycopg.Connection, settings: SourceSettings) -> list[Finding]:
    known = load_publications(conn, settings.publications)
    fix = "run `headwater source prepare`, or name an existing one in publications"
    return [
        Finding("PSYNC_S1141", f'publication "{name}" does not exist', fix)
        for name in settings.publications
        if name not in known
    ]


def unseen_findings(conn: psycopg.Connection, tables: Sequence[PublishedTable]) -> list[Finding]:
    """Warnings for tables with changes that no publication publishes, and for partitioned ones whose partitions have
    replica identities with nothing in common."""
    partly = [table for table in tables if table.unseen and not table.mixed]
    names = sorted({name for table in partly for name in table.publications})
    known = load_publications(conn, names) if names else {}
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for table in partly:
        lacking = [n for n in table.publications if n in known and not {*table.unseen} <= {*known[n].operations}]
        alike.setdefault(((lacking or table.publications)[0], table.unseen), []).append(table.qualified_name)
    alter = sql.SQL("run ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate')")
    late = "is not published: devices see it late, when the table is compared with the source"
    return [
        Finding(
            "PSYNC_S1142",
            f"{', '.join(unseen)} of {shortened(names)} {late}",
            alter.format(sql.Identifier(publication)).as_string(conn),
            fatal=False,
        )
        for (publication, unseen), names in alike.items()
    ] + [
        Finding(
            "HW_2029",
            f"the partitions of {table.qualified_name} tell rows apart in different ways: devices see updates and"
            " deletes late, when the table is compared with the source",
            "run ALTER TABLE … REPLICA IDENTITY FULL on each, new ones too, or have them share a key with the table",
            fatal=False,
        )
        for table in tables
        if table.mixed
    ]


def table_findings(conn: psycopg.Connection, tables: Sequence[PublishedTable]) -> list[Finding]:
    """Which tables we may not read, which changes are not published, and which tables refuse updates because they lack
    a replica identity."""
    barred = unreadable(conn, [Reading.of(table) for table in tables])
    rights = dict.fromkeys(finding for findings in barred.values() for finding in findings)
    keyless = [keyless_finding(conn, table) for table in tables if _lost_identity(table)]
    generated = [found for table in tables for found in generated_findings(conn, table)]
    return [*rights, *unseen_findings(conn, tables), *keyless, *generated]


def frozen_findings(
    conn: psycopg.Connection, tables: Sequence[PublishedTable], wanted: Sequence[PublishedTable]
) -> list[Finding]:
    """The warnings for published tables that are not wanted, and whose updates and deletes Postgres refuses. Those that
    are wanted have findings of their own."""
    there = {table.relation.oid for table in wanted}
    frozen = [table for table in tables if table.relation.oid not in there and _lost_identity(table)]
    found = []
    for finding in (keyless_finding(conn, table) for table in frozen[:NAMED]):
        fix = f"{finding.fix}, or take it out of the publication: the sync config does not name it"
        found.append(replace(finding, code="HW_2036", fix=fix))
    if len(frozen) > NAMED:
        what = f"Postgres refuses updates and deletes of {len(frozen) - NAMED} more tables, published without a key"
        fix = "take them out of the publication, or see that each has a primary key or REPLICA IDENTITY FULL"
        found.append(Finding("HW_2036", what, fix, fatal=False))
    return found


def undecided_findings(settings: SourceSettings, tables: Sequence[PublishedTable], deciding: Deciding) -> list[Finding]:
    """The tables of which nobody gets rows, since a column that decides about it is not there or not published. That
    only some tables of a wildcard lack it is a warning, as by `headwater rules check`."""
    findings: dict[Finding, None] = {}
    known = [table for table in tables if not table.locked]  # generated columns of a locked one can't be read now
    for pattern, exprs in deciding:
        matching = [table for table in known if _wanted(table, settings.tag, [pattern])]
        nowhere = lacking(exprs, frozenset[str]().union(*map(_columns, matching)))
        for table in matching:
            for name in lacking(exprs, _columns(table)):
                what = (
                    f"{table.qualified_name} has no published column {name}, which decides in the sync config who gets"
                    " rows: nobody gets them by it"
                )
                fix = "correct the sync config, or add the column (and publish it, if the publication lists columns)"
                findings[Finding("HW_R302", what, fix, fatal=name in nowhere)] = None
    return list(findings)


def _columns(table: PublishedTable) -> frozenset[str]:
    return frozenset(column.name for column in table.relation.columns)


def generated_findings(conn: psycopg.Connection, table: PublishedTable) -> list[Finding]:
    """Findings about generated columns that identify rows, or that can't be computed."""
    findings = []
    if table.unsent_key:
        error = unsent_key_error(table)
        findings.append(Finding(error.code, f"{error.where}: {error.what}", error.fix))
    elif (
        table.relation.identity is ReplicaIdentity.FULL
        and conn.info.server_version >= 18_00_00
        and (table.left_out or any(column.generated for column in table.relation.columns))
    ):
        what = f"{table.qualified_name} identifies rows by all columns, and not all generated ones are published"
        fix = "run ALTER PUBLICATION … SET (publish_generated_columns = stored): Postgres refuses updates meanwhile"
        if table.virtual:  # which can't be published
            fix = (
                f"choose another replica identity, or make {', '.join(table.virtual)} STORED: Postgres refuses updates"
            )
        findings.append(Finding("HW_2028", what, fix, fatal=False))
    if table.left_out:
        names = ", ".join(table.left_out)
        what = f"{table.qualified_name} lacks {names}: not all that they are computed from is published"
        findings.append(Finding("HW_2027", what, "publish those columns, too, or do not select these", fatal=False))
    return findings


def keyless_finding(conn: psycopg.Connection, table: PublishedTable) -> Finding:
    """The warning for a table whose updates and deletes Postgres refuses because nothing identifies a row."""
    name = sql.Identifier(table.relation.schema, table.relation.name)
    alter = sql.SQL("ALTER TABLE {} REPLICA IDENTITY ").format(name).as_string(conn)
    refused = "so Postgres refuses its updates and deletes"
    if table.relation.identity is ReplicaIdentity.INDEX:
        what = f"the index that was to identify the rows of {table.qualified_name} is gone, {refused}"
        return Finding("HW_2024", what, f"run {alter}DEFAULT if it has a primary key, else {alter}FULL", fatal=False)
    if table.relation.by_leaf:
        what = f"the partitions of {table.qualified_name} have nothing that identifies their rows, {refused}"
        return Finding("HW_2017", what, "set the replica identity of each: it does not follow the table's", fatal=False)
    deferrable = "select from pg_index where indrelid = %s and indisprimary and not indimmediate"
    if conn.execute(deferrable, [table.relation.oid]).fetchone() is not None:
        what = f"the primary key of {table.qualified_name} is deferrable and can't identify rows, {refused}"
        return Finding("HW_2017", what, f"make it NOT DEFERRABLE, or run {alter}FULL", fatal=False)
    what = f"{table.qualified_name} has no primary key, {refused}"
    return Finding("HW_2017", what, f"add a primary key, or run {alter}FULL", fatal=False)


def _wanted(table: PublishedTable, tag: str, patterns: Sequence[TablePattern] | None) -> bool:
    relation = table.relation
    return patterns is None or any(pattern.matches(tag, relation.schema, relation.name) for pattern in patterns)


def _lost_identity(table: PublishedTable) -> bool:
    """Whether a table has no identity, though it was not set to NOTHING and its updates or deletes are published."""
    relation = table.relation
    if table.mixed or {"update", "delete"} <= {*table.unseen}:
        return False
    asked = relation.identity is ReplicaIdentity.NOTHING and not relation.by_leaf
    return not asked and not any(column.key for column in relation.columns)


# A managed Postgres hands the right to replicate out through a role of its own, not through the attribute.
_SERVER = """
select pg_is_in_recovery(), current_setting('wal_level'), current_setting('server_encoding'),
  bool_or(r.rolsuper or r.rolreplication) or exists (
    select from pg_roles g where g.rolname = 'rds_replication' and pg_has_role(session_user, g.oid, 'member'))
from pg_roles r where r.rolname = session_user
"""

_ROOM = """
select current_setting('max_replication_slots')::int, (select count(*) from pg_replication_slots),
  current_setting('max_wal_senders')::int, (select count(*) from pg_stat_replication)
"""


def room_findings(conn: psycopg.Connection, settings: SourceSettings, followed: str = "") -> list[Finding]:
    """Whether the server has the slots and WAL senders that we need besides those that we have. `followed` is the name
    of our slot, where that is known."""
    findings = []
    names = (followed, slot_name(settings))
    own = next((slot for name in names if (slot := slot_status(conn, name)) is not None), None)
    if own is not None and own.database != conn.info.dbname:
        own = None
    ours = own and slot_status(conn, temporary_slot_name(own.name))  # of a comparison that is going on
    needed = SLOTS if own is None else SLOTS - 1
    ((slots, taken, senders, active),) = conn.execute(_ROOM).fetchall()
    free = slots - taken + (ours is not None)
    if free < needed:
        what = f"{max(free, 0)} of {slots} replication slots are free, and {needed} are needed"
        alter = f"ALTER SYSTEM SET max_replication_slots = {slots + needed - free}"
        fix = (
            f"drop one that nobody reads (SELECT slot_name, active FROM pg_replication_slots), or run {alter}{_RESTART}"
        )
        findings.append(Finding("HW_2014", what, fix, sql=(alter,)))
    active -= ours is not None
    needed = SLOTS - (own is not None and own.active_pid is not None)
    if senders - active < needed:
        what = f"{max(senders - active, 0)} of {senders} WAL senders are free, and {needed} are needed"
        alter = f"ALTER SYSTEM SET max_wal_senders = {active + needed}"
        findings.append(Finding.lacking("HW_2015", what, alter, _RESTART))
    return findings
