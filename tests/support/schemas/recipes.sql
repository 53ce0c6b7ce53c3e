create table schema_migrations (version character varying primary key);
create table members (id bigserial primary key, email character varying not null default '', encrypted_password character varying not null default '',
  sign_in_count integer default 0 not null, nickname character varying, created_at timestamp(6) not null, updated_at timestamp(6) not null);
create table clients (id bigserial primary key, name character varying not null, email character varying);
create table recipes (id bigserial primary key, member_id bigint not null references members, client_id bigint references clients, title character varying not null,
  created_at timestamp(6) not null, updated_at timestamp(6) not null);
create table ingredients (id bigserial primary key, name character varying not null);
create table recipe_ingredients (id bigserial primary key, recipe_id bigint not null references recipes, ingredient_id bigint not null references ingredients,
  amount numeric(8, 2), unit character varying);
create table cookbooks (id uuid primary key default gen_random_uuid(), owner_id bigint not null references members, name character varying not null);
create table cookbooks_recipes (cookbook_id uuid not null references cookbooks, recipe_id bigint not null references recipes, primary key (cookbook_id, recipe_id));
create table favorites (member_id bigint not null references members, recipe_id bigint not null references recipes, primary key (member_id, recipe_id));
insert into members (email, nickname, created_at, updated_at) values ('ann@example.com', 'Ann', now(), now()), ('bob@example.com', 'Bob', now(), now());
insert into recipes (member_id, title, created_at, updated_at) values (1, 'of Ann', now(), now()), (2, 'of Bob', now(), now());
insert into ingredients (name) values ('Leek');
insert into recipe_ingredients (recipe_id, ingredient_id, amount, unit) values (1, 1, 2, 'of Ann'), (2, 1, 3, 'of Bob');
insert into cookbooks (owner_id, name) values (1, 'of Ann'), (2, 'of Bob');
insert into favorites values (1, 2), (2, 1);
