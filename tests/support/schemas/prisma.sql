create type "Priority" as enum ('LOW', 'NORMAL', 'URGENT');
create table "Customer" ("id" text primary key, "name" text not null, "email" text, "phone" text);
create table "Technician" ("id" text primary key, "email" text not null unique, "passwordHash" text not null, "isAdmin" boolean not null default false);
create table "Session" ("id" text primary key, "technicianId" text not null references "Technician" on delete cascade, "sessionToken" text);
create table "Job" ("id" text primary key, "customerId" text not null references "Customer" on delete restrict,
  "technicianId" text not null references "Technician" on delete restrict, "title" text not null, "priority" "Priority" not null,
  "createdAt" timestamp(3) not null default current_timestamp, "updatedAt" timestamp(3) not null);
create table "JobNote" ("id" text primary key, "jobId" text not null references "Job" on delete cascade, "body" text not null);
create table "Skill" ("id" text primary key, "name" text not null);
create table "JobSkill" ("jobId" text not null references "Job" on delete cascade, "skillId" text not null references "Skill" on delete cascade,
  "hours" double precision, primary key ("jobId", "skillId"));
create table "_SkillToTechnician" ("A" text not null references "Skill" on delete cascade, "B" text not null references "Technician" on delete cascade, primary key ("A", "B"));
create table "_prisma_migrations" ("id" varchar(36) primary key, "checksum" varchar(64));
insert into "Customer" values ('clcust1', 'Bakery', 'bakery@example.com', '1'), ('clcust2', 'Hotel', 'hotel@example.com', '2');
insert into "Technician" values ('cltech1', 'ann@example.com', 'x'), ('cltech2', 'bob@example.com', 'x');
insert into "Session" values ('clses1', 'cltech1', 'x'), ('clses2', 'cltech2', 'y');
insert into "Job" values ('cljob1', 'clcust1', 'cltech1', 'of Ann', 'LOW', now(), now()), ('cljob2', 'clcust2', 'cltech2', 'of Bob', 'LOW', now(), now());
insert into "JobNote" values ('clnote1', 'cljob1', 'of Ann'), ('clnote2', 'cljob2', 'of Bob');
insert into "Skill" values ('clgas', 'Gas'), ('clled', 'LED');
insert into "JobSkill" values ('cljob1', 'clgas', 1.5), ('cljob2', 'clgas', 2);
