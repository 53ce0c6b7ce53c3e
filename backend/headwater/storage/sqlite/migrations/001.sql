-- The embedded store, format 1. Op ids, table ids and bucket keys are 63-bit integers.

create table if not exists meta (
    key   text primary key,
    value any
) strict;

create table if not exists configs (
    id         integer primary key,
    yaml       text not null,
    active     integer not null,
    created_at real not null
) strict;

create table if not exists leases (
    name       text primary key,
    owner      text not null,
    epoch      integer not null,
    expires_at real not null
) strict;

create table if not exists sources (
    tag       text primary key,
    lsn       integer not null,
    slot      text not null,
    system_id text not null,
    timeline  integer not null
) strict;

-- One row: what clients may see, and the next op id to give out.
create table if not exists state (
    id         integer primary key check (id = 1),
    next_op    integer not null,
    checkpoint integer,
    config     integer
) strict;

-- Generations of source tables. Current rows of generation n are in the table rows_n, made beside it.
create table if not exists tables (
    id          integer primary key autoincrement,
    source      text not null,
    layouts     text not null,
    fingerprint text not null,
    state       text not null check (state in ('staged', 'active'))
) strict;

create table if not exists buckets (
    id         integer primary key,
    name       text not null,
    definition text not null,
    checksum   integer not null,
    count      integer not null,
    clear_op   integer not null,
    last_op    integer not null
) strict;
create index if not exists buckets_definition on buckets (definition);

-- The hot tail of history: finished ops.
create table if not exists ops (
    id     integer primary key,
    bucket integer not null,
    line   text not null
) strict;
create index if not exists ops_bucket on ops (bucket);

-- Runs of ops as bulk work left them: bodies without ids, compressed. `segments` gives them their place.
create table if not exists segment_blobs (
    id       integer primary key autoincrement,
    bucket   integer not null,
    size     integer not null,
    checksum integer not null,
    bodies   blob not null
) strict;
create table if not exists segments (
    bucket   integer not null,
    first_op integer not null,
    last_op  integer not null,
    blob     integer not null,
    primary key (bucket, first_op)
) strict, without rowid;
create index if not exists segments_last on segments (last_op);

-- Segments and bucket names that a bulk job has handed over and nobody has published.
create table if not exists staged_segments (
    blob     integer primary key,
    bucket   integer not null,
    size     integer not null,
    checksum integer not null
) strict;
create table if not exists staged_buckets (
    id         integer primary key,
    name       text not null,
    definition text not null
) strict;

create table if not exists lookups (
    key       text not null,
    table_id  integer not null,
    row_id    text not null,
    output    text not null,
    primary key (key, table_id, row_id, output)
) strict, without rowid;
create index if not exists lookups_row on lookups (table_id, row_id);

-- One row a flush: where its ops end, where the source stood, and what it touched (null: too much to name).
create table if not exists flushes (
    last_op      integer primary key,
    source       text not null,
    lsn          integer not null,
    committed_us integer not null,
    buckets      text,
    lookups      text
) strict;

create table if not exists bulk_jobs (
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
