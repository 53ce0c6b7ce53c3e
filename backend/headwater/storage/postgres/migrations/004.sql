-- Format 4: revocations.
create table revocations (
    seq   bigint generated always as identity primary key,
    kind  text not null,
    value text not null,
    since double precision not null,
    until double precision not null
);
