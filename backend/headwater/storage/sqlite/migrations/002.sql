-- Format 2: versions of the sync config, row sides, requests, compaction.

create table versions (
    id           integer primary key autoincrement,
    yaml         text not null,
    state        text not null check (state in ('processing', 'active', 'stopped', 'failed')),
    origin       text not null check (origin in ('file', 'command')),
    created_at   real not null,
    activated_at real not null default 0,
    stopped_at   real not null default 0,
    note         text not null default ''
) strict;
insert into versions (id, yaml, state, origin, created_at, activated_at, stopped_at)
    select id, yaml, case active when 1 then 'active' else 'stopped' end, 'file', created_at, created_at,
        case active when 1 then 0 else created_at end from configs;
drop table configs;

-- Row sides of bucket definitions and lookups: being built, complete, or on their way out. After the move from format 1
-- there are none: the replicator then finds every row to be there already.
create table sides (
    name   text primary key,
    digest text not null,
    state  text not null check (state in ('building', 'complete', 'retiring'))
) strict;
create table retired_buckets (
    id   integer primary key,
    name text not null
) strict;

create table requests (
    id         integer primary key autoincrement,
    kind       text not null,
    source     text not null,
    payload    text not null,
    state      text not null check (state in ('waiting', 'running', 'done', 'failed')),
    progress   text not null default '',
    result     text not null default '',
    created_at real not null,
    changed_at real not null
) strict;

alter table state add column inbox integer not null default 0;
alter table state add column retired integer not null default 0;  -- grows when buckets go
alter table tables add column resync text not null default '';

-- Compaction has rewritten history up to compacted_op, and left this many ops and rows.
alter table buckets add column compacted_op integer not null default 0;
alter table buckets add column compacted_count integer not null default 0;
alter table buckets add column live_rows integer not null default 0;

-- A sealed segment holds finished ops with ids of their own; another one bodies, numbered from first_op on.
alter table segments add column sealed integer not null default 0;
