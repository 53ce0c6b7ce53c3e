-- Several sources: each has the bucket definitions of its tables.

alter table definitions add column source text not null default 'default';
update definitions set source = coalesce((select min(tag) from sources), (select min(name) from leases), 'default');
alter table definitions alter column source drop default;
alter table definitions drop constraint definitions_pkey;
alter table definitions add primary key (name, source);
