"""Transactions that wait until an operator or the app's developer mends something: for what, and since when.

The source keeps them, one for each device, since its queue waits for the first of them. So all processes know, and a
restart forgets nothing. A record is over once the device's transaction was applied or parked.
"""

from __future__ import annotations

import re

import psycopg

from headwater.source.connect import connect, source_errors
from headwater.source.readiness.finding import Finding
from headwater.source.upload.entries import ClientTransaction, Device
from headwater.source.upload.errors import Held, Waits, WriteFailed
from headwater.source.upload.ledger import Client, prepared
from headwater.source.upload.settings import UploadSettings

CREATE = """CREATE TABLE headwater_upload.waiting (
  client bigint PRIMARY KEY REFERENCES headwater_upload.clients ON DELETE CASCADE,
  last_op bigint NOT NULL,
  digest bytea NOT NULL,
  code text NOT NULL,
  place text NOT NULL,
  what text NOT NULL,
  fix text NOT NULL,
  app_version text NOT NULL,
  tries int NOT NULL DEFAULT 1,
  since timestamptz NOT NULL DEFAULT now(),
  tried_at timestamptz NOT NULL DEFAULT now()
)"""

_HOLD = """
insert into headwater_upload.waiting as w (client, last_op, digest, code, place, what, fix, app_version)
values (%s, %s, %s, %s, %s, %s, %s, %s)
on conflict (client) do update set
  tries = case when (w.digest, w.code) = (excluded.digest, excluded.code) then w.tries + 1 else 1 end,
  since = case when w.digest = excluded.digest then w.since else now() end,
  last_op = excluded.last_op, digest = excluded.digest, code = excluded.code, place = excluded.place,
  what = excluded.what, fix = excluded.fix, app_version = excluded.app_version, tried_at = now()
returning tries, (extract(epoch from now() - since) / 3600)::float8
"""

# An operator is told of what devices still send. A user may have many of them and choose what they lack, so what many
# users wait for comes first, and of each table something
_CAUSES = """
select code, place, what, fix, devices, since, tried, versions from (
  select w.code, w.place, w.what, w.fix, count(*) as devices, count(distinct c.sub) as users,
         to_char(min(w.since) at time zone 'UTC', 'YYYY-MM-DD HH24:MI') as since,
         to_char(max(w.tried_at) at time zone 'UTC', 'YYYY-MM-DD HH24:MI') as tried,
         (array_agg(distinct w.app_version) filter (where w.app_version <> ''))[:5] as versions,
         row_number() over (partition by w.code, w.place order by count(distinct c.sub) desc, min(w.since)) as number
  from headwater_upload.waiting w join headwater_upload.clients c using (client)
  where w.last_op > c.highest_op and w.tried_at > now() - interval '1 day'
  group by w.code, w.place, w.what, w.fix) causes
where number <= 5 order by number, users desc limit 50
"""

# Which of these names the role may not use: Postgres names one in the message, in the language of the server, and
# without its schema
_LACKING = """
select format('GRANT %%s ON %%s TO %%I', g.rights, g.thing, g.role) from (
  select pg_table_is_visible(c.oid) as near, case c.relkind when 'S' then 'USAGE' else a.verb end as rights, a.role,
         case c.relkind when 'S' then 'SEQUENCE ' else '' end || format('%%I.%%I', n.nspname, c.relname) as thing
  from asked a join pg_class c on c.relname = any(a.names) and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
    join pg_namespace n on n.oid = c.relnamespace and n.nspname not in ('pg_catalog', 'information_schema')
  where not case c.relkind when 'S' then has_sequence_privilege(a.role, c.oid, 'USAGE')
                           else has_table_privilege(a.role, c.oid, a.verb) end
  union all
  select true, 'USAGE', a.role, format('SCHEMA %%I', n.nspname) from asked a
    join pg_namespace n on n.nspname = any(a.names)
  where not has_schema_privilege(a.role, n.oid, 'USAGE')
  union all
  select pg_function_is_visible(p.oid), 'EXECUTE', a.role, format('FUNCTION %%s', p.oid::regprocedure)
  from asked a join pg_proc p on p.proname = any(a.names)
  where not has_function_privilege(a.role, p.oid, 'EXECUTE')) g order by g.near desc limit 1
"""
_ASKED = "with asked (role, verb, names) as (values (%s::text, %s::text, %s::text[]))"


async def hold(
    conn: psycopg.AsyncConnection,
    settings: UploadSettings,
    client: Client,
    device: Device,
    transaction: ClientTransaction,
    cause: Waits,
) -> Held:
    """Record that the device's transaction waits for this, and return for how long it has. Gives the cause the
    statement that mends it, where it is a missing grant."""
    if isinstance(cause, WriteFailed) and cause.sqlstate == "42501" and cause.verb:
        asked = [settings.role, cause.verb, _named(cause.what)]
        grant = await (await conn.execute(_ASKED + _LACKING, asked)).fetchone()
        cause.fix = cause.fix if grant is None else f"run {grant[0]}"
    told = [cause.code, cause.where, cause.what, cause.fix, device.app_version]
    with prepared():
        found = await conn.execute(_HOLD, [client.number, transaction.last_op, transaction.digest, *told])
        row = await found.fetchone()
    assert row is not None
    return Held(*row)


def _named(what: str) -> list[str]:
    """The words of a message that may name what the role may not use: in English the last ones, since the others may
    be names of tables too."""
    if _DENIED not in what:
        return re.findall(r"[^\s\"'«»„“”‘’、「」]+", what)
    named = re.search(rf"{_DENIED} (?:\w+ )?{_KINDS} (.+)", what)
    return [named[1]] if named else []


_DENIED = "permission denied for"
_KINDS = "(?:table|view|sequence|schema|function|procedure)"


def waiting(settings: UploadSettings) -> list[Finding]:
    """What uploads wait for, and somebody has to mend: one finding for each cause. Raises SourceUnreachable or
    SourceRefused."""
    with connect(settings.login) as conn, source_errors(settings.login), prepared():
        is_there = conn.execute("select to_regclass('headwater_upload.waiting') is not null").fetchone()
        rows = conn.execute(_CAUSES).fetchall() if is_there == (True,) else []
    return [_finding(*row) for row in rows]


def _finding(
    code: str, place: str, what: str, fix: str, devices: int, since: str, tried: str, versions: list[str] | None
) -> Finding:
    where = f" ({place})" if place else ""
    who = f"{devices:,} device{'' if devices == 1 else 's'}"
    of_app = f", app version {', '.join(versions)}" if versions else ""
    told = f"{what}{where}: uploads of {who} wait since {since} UTC{of_app}; last tried {tried} UTC"
    return Finding(code, told, fix, fatal=False)
