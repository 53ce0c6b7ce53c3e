-- Several sources: each has the bucket definitions of its tables.

alter table definitions add column source text not null default 'default';
update definitions set source = coalesce((select min(tag) from sources), (select min(name) from leases), 'default');
alter table definitions alter column source drop default;
alter table definitions drop constraint definitions_pkey;
alter table definitions add primary key (name, source);
-- `retired`: nothing of the source is left in it, and others still have it.
alter table definitions drop constraint definitions_state_check;
alter table definitions add check (state in ('building', 'complete', 'retiring', 'retired'));
delete from meta where key = 'retire';
