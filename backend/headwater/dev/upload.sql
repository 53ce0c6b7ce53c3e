-- Who may write what of the demo: whoever owns a list may do anything with it; who shares it may work on its to-dos,
-- rename it, and leave it. Safe to repeat.

do $$ begin
  if not exists (select from pg_roles where rolname = 'headwater_demo') then
    create role headwater_demo nologin;
  end if;
end $$;

create schema if not exists demo;

grant usage on schema demo to headwater_demo;

-- The user whom the token has proven
create or replace function demo.me() returns uuid language sql stable
  as $$ select nullif(current_setting('request.jwt.claim.sub', true), '')::uuid $$;

-- With the rights of their owner, since policies of two tables that look at each other would go round in a circle
create or replace function demo.owner_of(list uuid) returns uuid language sql stable security definer
  set search_path = public, pg_temp
  as $$ select owner_id from lists where id = list $$;

create or replace function demo.may_use(list uuid) returns boolean language sql stable security definer
  set search_path = public, pg_temp
  as $$ select demo.owner_of(list) = demo.me()
    or exists (select from list_members where list_id = list and user_id = demo.me()) $$;

-- The conflict policy of to-dos. A title that somebody else has changed since the device read it is not overwritten; of
-- ticks and everything else, the last write wins. A device that sends no previous title has the last word, too.
create or replace function demo.keep_titles(tab text, op text, id text, data jsonb, old jsonb) returns jsonb
  language plpgsql as $$
declare
  title_now text;
begin
  if op = 'PATCH' and data ? 'title' and old ? 'title' then
    select title into title_now from public.todos where todos.id::text = keep_titles.id for update;
    if found and title_now <> old ->> 'title' and title_now <> data ->> 'title' then
      raise exception 'the title was changed since this device read it' using errcode = 'HW409';
    end if;
  end if;
  return data;
end $$;

alter table lists enable row level security;

alter table list_members enable row level security;

alter table todos enable row level security;

drop policy if exists seen on lists;

create policy seen on lists for select using (owner_id = demo.me() or demo.may_use(id));

drop policy if exists made on lists;

create policy made on lists for insert with check (owner_id = demo.me());

-- The function sees the row as it was: its owner stays
drop policy if exists renamed on lists;

create policy renamed on lists for update using (demo.may_use(id)) with check (owner_id = demo.owner_of(id));

drop policy if exists removed on lists;

create policy removed on lists for delete using (owner_id = demo.me());

drop policy if exists seen on list_members;

create policy seen on list_members for select using (user_id = demo.me() or demo.may_use(list_id));

drop policy if exists invited on list_members;

create policy invited on list_members for insert
  with check (demo.owner_of(list_id) = demo.me() and (role = 'owner') = (user_id = demo.me()));

drop policy if exists left_out on list_members;

create policy left_out on list_members for delete
  using (role <> 'owner' and (user_id = demo.me() or demo.owner_of(list_id) = demo.me()));

drop policy if exists worked_on on todos;

create policy worked_on on todos using (demo.may_use(list_id)) with check (demo.may_use(list_id));
