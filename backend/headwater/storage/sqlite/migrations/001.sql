-- The embedded store. Op ids, table ids and bucket keys are 63-bit integers. The file of write checkpoints and the tables
-- of current rows are made by cursor.py.

create table meta (
    key   text primary key,
    value any
) strict;

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

-- Bucket definitions and lookups: being built, complete, or on their way out.
create table definitions (
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

create table leases (
    name       text primary key,
    owner      text not null,
    epoch      integer not null,
    expires_at real not null
) strict;

create table sources (
    tag       text primary key,
    lsn       integer not null,
    slot      text not null,
    system_id text not null,
    timeline  integer not null
) strict;

-- One row: what clients may see, and the next op id to give out. `inbox` grows with each request and each version that
-- is handed in, `retired` when buckets go.
create table state (
    id         integer primary key check (id = 1),
    next_op    integer not null,
    checkpoint integer,
    config     integer,
    inbox      integer not null default 0,
    retired    integer not null default 0
) strict;

-- Generations of source tables. Current rows of generation n are in the table rows_n, made beside it.
create table tables (
    id            integer primary key autoincrement,
    source        text not null,
    layouts       text not null,
    fingerprint   text not null,
    state         text not null check (state in ('staged', 'active')),
    resync        text not null default '',
    resync_detail text not null default ''
) strict;

-- A bucket is what its name says; its id is a keyed hash of the name, or another number where that was taken.
-- Compaction has rewritten history up to compacted_op, and left compacted_count ops and live_rows rows.
create table buckets (
    id              integer primary key,
    name            text not null,
    definition      text not null,
    checksum        integer not null,
    count           integer not null,
    clear_op        integer not null,
    last_op         integer not null,
    compacted_op    integer not null default 0,
    compacted_count integer not null default 0,
    live_rows       integer not null default 0
) strict;
create index buckets_definition on buckets (definition);

-- Buckets whose id is not the hash of their name.
create table moved_buckets (
    name text primary key,
    id   integer not null
) strict;

-- The hot tail of history: finished ops.
create table ops (
    id     integer primary key,
    bucket integer not null,
    line   text not null
) strict;
create index ops_bucket on ops (bucket);

-- Runs of ops as bulk work and compaction left them, compressed. `segments` gives them their place. A sealed segment
-- holds finished ops with ids of their own; another one bodies, numbered from first_op on.
create table segment_blobs (
    id       integer primary key autoincrement,
    bucket   integer not null,
    size     integer not null,
    checksum integer not null,
    bodies   blob not null
) strict;
create table segments (
    bucket   integer not null,
    first_op integer not null,
    last_op  integer not null,
    blob     integer not null,
    sealed   integer not null default 0,
    primary key (bucket, first_op)
) strict, without rowid;
create index segments_last on segments (last_op);

-- Segments and bucket names that a bulk job has handed over and nobody has published.
create table staged_segments (
    blob     integer primary key,
    bucket   integer not null,
    size     integer not null,
    checksum integer not null
) strict;
create table staged_buckets (
    id         integer not null,
    name       text not null,
    definition text not null,
    primary key (id, name)
) strict;

create table lookups (
    key       text not null,
    table_id  integer not null,
    row_id    text not null,
    output    text not null,
    primary key (key, table_id, row_id, output)
) strict, without rowid;
create index lookups_row on lookups (table_id, row_id);

-- One row a flush: where its ops end, where the source stood, and what it touched (null: too much to name).
create table flushes (
    last_op      integer primary key,
    source       text not null,
    lsn          integer not null,
    committed_us integer not null,
    buckets      text,
    lookups      text
) strict;

create table bulk_jobs (
    id          integer primary key,
    kind        text not null,
    source      text not null,
    application text not null,
    tasks       integer not null,
    rows        integer not null,
    ops         integer not null,
    started     real not null,
    finished    real not null
) strict;

create table revocations (
    seq   integer primary key autoincrement,
    kind  text not null,
    value text not null,
    since real not null,
    until real not null
) strict;
