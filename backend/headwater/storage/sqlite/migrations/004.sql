-- Format 4: revocations.
create table if not exists revocations (
    seq   integer primary key autoincrement,
    kind  text not null,
    value text not null,
    since real not null,
    until real not null
) strict;
