-- Several sources: each has the bucket definitions of its tables.

-- Each may be of every source that has tables: which of them has rows in it is not known.
alter table definitions drop constraint definitions_pkey;
alter table definitions add column source text;
insert into definitions (source, name, digest, state)
select s.name, d.name, d.digest, d.state from definitions d cross join (
    select tag as name from sources union select source from tables where state = 'active'
    union select coalesce((select min(name) from leases where name <> 'compaction'), 'default')
    where not exists (select 1 from sources)
) s;
delete from definitions where source is null;
alter table definitions add primary key (name, source);
-- `retired`: nothing of the source is left in it, and others still have it.
alter table definitions drop constraint definitions_state_check;
alter table definitions add check (state in ('building', 'complete', 'retiring', 'retired'));
delete from meta where key = 'retire';
