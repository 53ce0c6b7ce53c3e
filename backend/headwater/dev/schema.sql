-- The tables of the demo: to-do lists that people share.

create table users (
  id uuid primary key,
  name text not null,
  email text not null unique,
  created_at timestamptz not null
);

create table lists (
  id uuid primary key,
  owner_id uuid not null references users,
  name text not null check (name <> ''),
  created_at timestamptz not null default now()
);

create table list_members (
  id uuid primary key,
  list_id uuid not null references lists on delete cascade,
  user_id uuid not null references users,
  role text not null check (role in ('owner', 'member')),
  unique (list_id, user_id)
);

create table todos (
  id uuid primary key,
  list_id uuid not null references lists on delete cascade,
  title text not null check (title <> ''),
  notes text,
  done boolean not null default false,
  created_at timestamptz not null default now(),
  completed_at timestamptz
);

-- Who did what. No key, and identical rows are possible: the whole row is its identity.
create table activity (
  user_id uuid not null references users,
  action text not null,
  happened_at timestamptz not null
);

-- Append-only: nothing identifies a row, so Postgres takes inserts and TRUNCATE, but no updates or deletes.
create table announcements (
  title text not null,
  body text not null,
  published_at timestamptz not null
);

alter table activity replica identity full;

alter table announcements replica identity nothing;

create index on lists (owner_id);

create index on list_members (user_id);

create index on todos (list_id);
