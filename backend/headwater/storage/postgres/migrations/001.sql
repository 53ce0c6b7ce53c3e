-- The store in Postgres, within the schema that the session's search_path names.

create table meta (
    key   text primary key,
    value text not null
);

create table versions (
    id           bigint generated always as identity primary key,
    yaml         text not null,
    state        text not null check (state in ('processing', 'active', 'stopped', 'failed')),
    origin       text not null check (origin in ('file', 'command')),
    created_at   double precision not null,
    activated_at double precision not null default 0,
    stopped_at   double precision not null default 0,
    note         text not null default ''
);

-- Bucket definitions and lookups: being built, complete, or on their way out.
create table definitions (
    name   text primary key,
    digest text not null,
    state  text not null check (state in ('building', 'complete', 'retiring'))
);
create table retired_buckets (
    id   bigint primary key,
    name text not null
);

create table requests (
    id         bigint generated always as identity primary key,
    kind       text not null,
    source     text not null,
    payload    text not null,
    state      text not null check (state in ('waiting', 'running', 'done', 'failed')),
    progress   text not null default '',
    result     text not null default '',
    created_at double precision not null,
    changed_at double precision not null
);

-- Grows with each request and each version that is handed in. Apart from `state`, which a flush may lock for long.
create table inbox (
    id     integer primary key check (id = 1),
    number bigint not null
);

-- `flushing` names the holder's session that writes, so that the next holder can end it.
create table leases (
    name       text primary key,
    owner      text not null,
    epoch      bigint not null,
    expires_at timestamptz not null,
    flushing   text not null default ''
);

create table sources (
    tag       text primary key,
    lsn       bigint not null,
    slot      text not null,
    system_id text not null,
    timeline  integer not null
) with (fillfactor = 50);

-- One row: what clients may see, and the next op id to give out. Whoever numbers ops holds its lock until the commit,
-- so that nobody sees an op before one with a lower id. `retired` counts removals of buckets.
create table state (
    id         integer primary key check (id = 1),
    next_op    bigint not null,
    checkpoint bigint,
    config     bigint,
    retired    bigint not null default 0
) with (fillfactor = 50);

-- Generations of source tables. Current rows of generation n are in the table rows_n, made beside it. A dropped
-- generation is invisible, and swept away in steps that hold nobody up.
create table tables (
    id          bigint generated always as identity primary key,
    source      text not null,
    layouts     text not null,
    fingerprint text not null,
    state       text not null check (state in ('staged', 'active', 'dropped')),
    resync      text not null default '',
    resync_detail text not null default ''
);

-- A bucket is what its name says; its id is a keyed hash of the name, or another number where that was taken.
-- Compaction has rewritten history up to compacted_op, and left compacted_count ops and live_rows rows.
create table buckets (
    id              bigint primary key,
    name            text not null,
    definition      text not null,
    checksum        bigint not null,
    count           bigint not null,
    clear_op        bigint not null,
    last_op         bigint not null,
    compacted_op    bigint not null default 0,
    compacted_count bigint not null default 0,
    live_rows       bigint not null default 0
) with (fillfactor = 70);
create index buckets_definition on buckets (definition);

-- Buckets whose id is not the hash of their name.
create table moved_buckets (
    id   bigint primary key,
    name text not null
);

-- The hot tail of history: finished ops.
create table ops (
    bucket bigint not null,
    id     bigint not null,
    line   text not null,
    primary key (bucket, id)
);

-- Runs of ops as bulk work and compaction left them, compressed. `segments` gives them their place. A sealed segment
-- holds finished ops with ids of their own; another one bodies, numbered from first_op on.
create table segment_blobs (
    id       bigint generated always as identity primary key,
    bucket   bigint not null,
    size     bigint not null,
    checksum bigint not null,
    bodies   bytea not null
);
alter table segment_blobs alter column bodies set storage external;
create table segments (
    bucket   bigint not null,
    first_op bigint not null,
    last_op  bigint not null,
    blob     bigint not null,
    sealed   boolean not null default false,
    primary key (bucket, last_op)
);

-- Segments and bucket names that a bulk job has handed over and nobody has published.
create table staged_segments (
    blob     bigint primary key,
    table_id bigint not null,
    bucket   bigint not null,
    size     bigint not null,
    checksum bigint not null
);
-- What is in the tables that a finished task left, page by page. Those are unlogged: a crash of the server empties them.
create table staged_parts (
    path text not null,
    page integer not null,
    rows bigint not null,
    ops  bigint not null,
    primary key (path, page)
);
create table staged_buckets (
    table_id   bigint not null,
    id         bigint not null,
    name       text not null,
    definition text not null
);
create index staged_buckets_id on staged_buckets (table_id, id);

-- An index entry has to stay below 2,700 bytes, and a key may be of any length.
create table lookups (
    key      text collate "C" not null,
    table_id bigint not null,
    row_id   text collate "C" not null,
    output   text collate "C" not null
);
create index lookups_key on lookups (left(key, 500));
create index lookups_row on lookups (table_id, row_id);

-- One row a flush: where its ops end, where the source stood, and what it touched (null: too much to name).
create table flushes (
    last_op      bigint primary key,
    source       text not null,
    lsn          bigint not null,
    committed_us bigint not null,
    buckets      text,
    lookups      text
);

create table bulk_jobs (
    id          bigint generated always as identity primary key,
    kind        text not null,
    source      text not null,
    application text not null,
    tasks       bigint not null,
    rows        bigint not null,
    ops         bigint not null,
    started     double precision not null,
    finished    double precision not null
);

create table write_checkpoints (
    digest       bytea primary key,
    key          text not null,
    id           bigint not null,
    lsns         text not null,
    seq          bigint not null,
    requested_at double precision  -- seconds since 1970, of an id that the client chose
);
create unique index write_checkpoints_seq on write_checkpoints (seq);
create index write_checkpoints_user on write_checkpoints (left(split_part(key, '/', 1), 500), seq);
create table write_state (
    id  integer primary key check (id = 1),
    seq bigint not null
);

create table revocations (
    seq   bigint generated always as identity primary key,
    kind  text not null,
    value text not null,
    since double precision not null,
    until double precision not null
);
