"""Event triggers in the source, which announce a changed table at once, in the transaction that changed it.

They write a message into the log and nothing else. Any role can write such a message, so it is only a hint to read the
catalog, and what it says of names can hide rows but never show any. Without the triggers, changes are found by reading
the catalog every few seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson
import psycopg

from headwater.oplog.change import LogicalMessage
from headwater.source.connect import SourceSettings, connect
from headwater.source.readiness.finding import Finding

SCHEMA = "headwater_source"

_PREFIX, _CONTENT, _REFRESH = "headwater", b"ddl", b"refresh "

# The exception block is a subtransaction, so Postgres may send the message after the row that follows.
# The function runs with the rights of the role that changes the table, and must not give it more: so search_path is
# fixed, and the function is dropped and created, not replaced, since another role may own one of that name. Only
# cancellation and statement_timeout pass the exception block; these concern the user's own statement.
# The stream does not tell the names of partitioned tables, so the message does: in hexadecimal digits, since Postgres
# sends messages in the encoding of the database.
_BODY = """
declare
  lasting boolean;
  tables oid[];
  schemas oid[];
  names text;
begin
  if tg_event = 'sql_drop' then
    lasting := exists (select from pg_event_trigger_dropped_objects() o where not o.is_temporary);
  else
    lasting := exists (select from pg_event_trigger_ddl_commands() c where c.schema_name is distinct from 'pg_temp');
    tables := array(select c.objid from pg_event_trigger_ddl_commands() c where c.classid = 'pg_class'::regclass);
    schemas := array(select c.objid from pg_event_trigger_ddl_commands() c where c.classid = 'pg_namespace'::regclass);
    if schemas <> '{}' then
      tables := tables || array(select c.oid from pg_class c where c.relnamespace = any(schemas));
    end if;
    select encode(convert_to(json_object_agg(c.oid, json_build_array(n.nspname, c.relname))::text, 'UTF8'), 'hex')
      into names from pg_class c join pg_namespace n on n.oid = c.relnamespace
      where c.oid = any(tables) and c.relkind = 'p';
  end if;
  if lasting then
    perform pg_logical_emit_message(true, 'headwater', concat_ws(' ', 'ddl', names));
  end if;
exception when others then
  null;
end
"""

_EVENTS = {"headwater_ddl": "ddl_command_end", "headwater_drop": "sql_drop"}

_CREATE_FUNCTION = (
    f"CREATE FUNCTION {SCHEMA}.note_ddl() RETURNS event_trigger LANGUAGE plpgsql"
    f" SET search_path = pg_catalog, pg_temp AS $headwater${_BODY}$headwater$"
)

_INSTALL = (
    f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}",
    f"DROP FUNCTION IF EXISTS {SCHEMA}.note_ddl() CASCADE",
    _CREATE_FUNCTION,
    *(
        statement
        for name, event in _EVENTS.items()
        for statement in (
            f"DROP EVENT TRIGGER IF EXISTS {name}",
            f"CREATE EVENT TRIGGER {name} ON {event} EXECUTE FUNCTION {SCHEMA}.note_ddl()",
            f"ALTER EVENT TRIGGER {name} ENABLE ALWAYS",  # also while another replication applies changes
        )
    ),
)

_REMOVE = (
    *(f"DROP EVENT TRIGGER IF EXISTS {name}" for name in _EVENTS),
    f"DROP FUNCTION IF EXISTS {SCHEMA}.note_ddl()",
    f"DROP SCHEMA IF EXISTS {SCHEMA}",
)

_FOUND = """
select e.evtname, e.evtenabled::text,
       e.evtevent || case when e.evttags is null then '' else ' when tag' end,
       p.prosrc, p.prosecdef, coalesce(p.proconfig::text, ''), p.proowner = e.evtowner
from pg_event_trigger e join pg_proc p on p.oid = e.evtfoid join pg_namespace n on n.oid = p.pronamespace
where e.evtname = any(%s) and n.nspname = %s and p.proname = 'note_ddl'
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """The SQL that was run for the triggers, and warnings about what could not be done."""

    done: tuple[str, ...] = ()
    warnings: tuple[Finding, ...] = ()


def is_hint(message: LogicalMessage) -> bool:
    """Whether a message of the stream says that the catalog may have changed. Any role can write one."""
    return message.prefix == _PREFIX and message.content.split(b" ", 1)[0] == _CONTENT


def asked_refresh(message: LogicalMessage) -> str:
    """The computed table that a message asks to refresh; empty for other messages. Any role can write one."""
    if message.prefix != _PREFIX or not message.content.startswith(_REFRESH):
        return ""
    return message.content.removeprefix(_REFRESH).strip().decode(errors="replace")


def told_names(message: LogicalMessage) -> Mapping[int, tuple[str, str]]:
    """By oid, schema and name that a hint says partitioned tables have from here on. Any role can write one."""
    try:
        told = orjson.loads(bytes.fromhex(message.content.decode().removeprefix("ddl")))
        return {int(oid): (str(schema), str(name)) for oid, (schema, name) in told.items()}
    except (ValueError, TypeError, AttributeError):  # none are told, or the message is not of the triggers
        return {}


def triggers_on(conn: psycopg.Connection) -> bool:
    """Whether the triggers exist as `install` makes them, and are enabled."""
    found = conn.execute(_FOUND, [list(_EVENTS), SCHEMA]).fetchall()
    wanted = {
        (name, "A", event, _BODY, False, '{"search_path=pg_catalog, pg_temp"}', True) for name, event in _EVENTS.items()
    }
    # From Postgres 17 on, all event triggers of a server can be switched off
    may_fire = conn.execute("select coalesce(current_setting('event_triggers', true), 'on')").fetchall()
    return set(found) == wanted and may_fire == [("on",)]


def install(settings: SourceSettings, admin: SourceSettings | None = None) -> Installed:
    """Create the triggers unless they exist, as `admin`, or else as the role of `settings`. Returns a warning where the
    role may not. Raises SourceUnreachableError or SourceRefusedError."""
    with connect(admin or settings, patient=True) as conn:
        if triggers_on(conn):
            return Installed()
        return _run(conn, _INSTALL, _REFUSED_TO_INSTALL)


def missing_sql(settings: SourceSettings, admin: SourceSettings | None = None) -> tuple[str, ...]:
    """The statements that `install` would run."""
    with connect(admin or settings) as conn:
        return () if triggers_on(conn) else _INSTALL


def remove(settings: SourceSettings, admin: SourceSettings | None = None) -> Installed:
    """Drop the triggers and all that belongs to them. Raises SourceUnreachableError or SourceRefusedError."""
    with connect(admin or settings, patient=True) as conn:
        there = conn.execute(
            "select from pg_event_trigger where evtname = any(%s)"
            " union all select from pg_namespace where nspname = %s",
            [list(_EVENTS), SCHEMA],
        ).rowcount
        if not there:
            return Installed()
        return _run(conn, _REMOVE, _REFUSED_TO_REMOVE)


def _run(conn: psycopg.Connection, statements: tuple[str, ...], refused: tuple[str, str]) -> Installed:
    try:
        with conn.transaction():
            conn.execute("set local client_min_messages = warning")  # no notices about objects that do not exist
            for statement in statements:
                conn.execute(statement.encode())
    except psycopg.Error as error:
        reason = error.diag.message_primary or type(error).__name__
        what, fix = refused
        return Installed(warnings=(Finding("HW_2020", f"{what}: {reason}", fix, fatal=False),))
    return Installed(done=tuple(statement.partition(" AS $")[0] for statement in statements))


_REFUSED_TO_INSTALL = (
    "event triggers can't be created, so changes of tables are found by reading the catalog every few seconds",
    "to notice changes at once, repeat this with a superuser as --admin-uri; without, see docs/security.md on names",
)
_REFUSED_TO_REMOVE = (
    "the event triggers can't be removed",
    "repeat this with the superuser who made them as --admin-uri",
)
