create schema auth; create schema storage;
create table auth.users (id uuid primary key, email text, encrypted_password text, confirmation_token text);
create table auth.sessions (id uuid primary key, user_id uuid not null references auth.users);
create table storage.objects (id uuid primary key, owner uuid references auth.users);
create table profiles (id uuid primary key references auth.users on delete cascade, username text, avatar_url text);
create table teams (id uuid primary key, name text);
create table team_members (team_id uuid references teams, user_id uuid references profiles, removed_at timestamptz,
  primary key (team_id, user_id));
create table todos (id bigint generated always as identity primary key, user_id uuid not null references auth.users, task text,
  is_complete boolean default false);
create table documents (id uuid primary key, team_id uuid not null references teams, title text);
create table document_versions (id uuid primary key, document_id uuid not null references documents, body text);
create table plans (id int primary key, name text, price numeric);
insert into auth.users values ('00000000-0000-4000-8000-000000000001', 'ann@example.com', 'x', 'y'),
  ('00000000-0000-4000-8000-000000000002', 'bob@example.com', 'x', 'y');
insert into profiles select id, split_part(email, '@', 1) from auth.users;
insert into teams values ('10000000-0000-4000-8000-000000000001', 'Red'), ('10000000-0000-4000-8000-000000000002', 'Blue');
insert into team_members values ('10000000-0000-4000-8000-000000000001', '00000000-0000-4000-8000-000000000001', null),
  ('10000000-0000-4000-8000-000000000002', '00000000-0000-4000-8000-000000000002', null),
  ('10000000-0000-4000-8000-000000000002', '00000000-0000-4000-8000-000000000001', now());
insert into todos (user_id, task) select id, 'of ' || email from auth.users;
insert into documents select gen_random_uuid(), id, 'of ' || name from teams;
insert into document_versions select gen_random_uuid(), id, title from documents;
insert into plans values (1, 'Free', 0);
