-- Keeps the statements that wrote lately, so that the page can show them beside what they led to. Safe to repeat.
-- A record names the first rows of its statement; `sql` is what Postgres was sent, whoever sent it.

create unlogged table if not exists demo.writes (
  number bigint generated always as identity primary key,
  lsn pg_lsn not null,
  at timestamptz not null,
  by text,
  relation text not null,
  rows bigint not null,
  ids text[] not null,
  sql text not null
);

create or replace function demo.note_write() returns trigger language plpgsql security definer
  set search_path = public, pg_temp
  as $$
declare
  made bigint;
begin
  insert into demo.writes (lsn, at, by, relation, rows, ids, sql)
    select pg_current_wal_insert_lsn(), clock_timestamp(), nullif(current_setting('request.jwt.claim.sub', true), ''),
      tg_table_name, count(*), coalesce((array_agg(id::text))[1:20], '{}'), left(current_query(), 2000)
    from changed having count(*) > 0
    returning number into made;
  if made % 100 = 0 then
    delete from demo.writes where number in
      (select number from demo.writes where number <= made - 500 for update skip locked);
  end if;
  return null;
end $$;

do $$
declare
  name text;
begin
  foreach name in array array['lists', 'list_members', 'todos'] loop
    execute format('create or replace trigger note_insert after insert on %I
      referencing new table as changed for each statement execute function demo.note_write()', name);
    execute format('create or replace trigger note_update after update on %I
      referencing new table as changed for each statement execute function demo.note_write()', name);
    execute format('create or replace trigger note_delete after delete on %I
      referencing old table as changed for each statement execute function demo.note_write()', name);
  end loop;
end $$;
