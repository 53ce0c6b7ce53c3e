-- Rows whose buckets depend on the time. Times are in microseconds since 1970 UTC.

-- When a row has to be evaluated again; nothing for a row that stays as it is. It may be due too early, never too late.
create table flips (
    table_id bigint not null,
    row_id   text collate "C" not null,
    at       bigint not null,
    primary key (table_id, row_id)
);
create index flips_at on flips (table_id, at);
-- The time at which the rows of a source were evaluated last, which never goes back.
create table ticks (
    source text primary key,
    at     bigint not null
);
