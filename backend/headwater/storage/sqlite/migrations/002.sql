-- Several sources: each has the bucket definitions of its tables, and what its bulk job has staged.

-- Each may be of every source that has tables: which of them has rows in it is not known.
-- `retired`: nothing of the source is left in it, and others still have it.
create table definitions_by_source (
    source text not null,
    name   text not null,
    digest text not null,
    state  text not null check (state in ('building', 'complete', 'retiring', 'retired')),
    primary key (name, source)
) strict;
insert into definitions_by_source
select s.name, d.name, d.digest, d.state from definitions d cross join (
    select tag as name from sources union select source from tables where state = 'active'
    union select coalesce((select min(name) from leases where name <> 'compaction'), 'default')
    where not exists (select 1 from sources)
) s;
drop table definitions;
alter table definitions_by_source rename to definitions;
delete from meta where key = 'retire';

delete from segment_blobs where id in (select blob from staged_segments);
drop table staged_segments;
create table staged_segments (
    blob     integer primary key,
    table_id integer not null,
    bucket   integer not null,
    size     integer not null,
    checksum integer not null
) strict;
drop table staged_buckets;
create table staged_buckets (
    table_id   integer not null,
    id         integer not null,
    name       text not null,
    definition text not null,
    primary key (table_id, id, name)
) strict;
