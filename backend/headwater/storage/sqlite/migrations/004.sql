-- What operators did and said.

alter table versions add column author text not null default '';
alter table versions add column message text not null default '';

-- Changes made through the admin API, of which the newest are kept.
create table changes (
    id     integer primary key autoincrement,
    at     real not null,
    who    text not null,
    role   text not null,
    what   text not null,
    detail text not null
) strict;
-- Cases that sync configs are tried with, as JSON.
create table cases (
    name    text primary key,
    content text not null,
    updated real not null,
    author  text not null
) strict;
