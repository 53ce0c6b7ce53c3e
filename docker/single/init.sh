#!/bin/sh
# Run once, when the database is empty: the role that Headwater connects as, and tables to try it with.
set -eu
psql --set ON_ERROR_STOP=1 --set password="$PS_SOURCE_PASSWORD" --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
create role headwater with login replication password :'password';
create table lists (id uuid primary key default gen_random_uuid(), owner_id text not null, name text not null);
create table todos (
  id uuid primary key default gen_random_uuid(),
  list_id uuid not null references lists on delete cascade,
  title text not null,
  done boolean not null default false
);
create index on lists (owner_id);
create index on todos (list_id);
insert into lists (owner_id, name) values ('user-1', 'Groceries'), ('user-2', 'Garden');
insert into todos (list_id, title) select id, 'Look at ' || name from lists;
SQL
