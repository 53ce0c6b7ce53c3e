"""The benchmarks' table: small rows of six columns with about 60 characters of text, in ten buckets."""

from __future__ import annotations

STREAMS = """
config: {edition: 3}
streams:
  items:
    auto_subscribe: true
    query: SELECT * FROM items WHERE owner = auth.user_id()
"""

TABLE = """
create table items (
    id uuid primary key default gen_random_uuid(),
    owner text not null,
    title text not null,
    done boolean not null default false,
    n int not null,
    created_at timestamptz not null default now()
)
"""

OWNERS = 10


def insert(rows: int, first: int = 0, owners: int = OWNERS) -> str:
    """SQL that adds so many rows."""
    return (
        "insert into items (owner, title, done, n) select 'u' || i % "
        f"{owners}, 'title ' || md5(i::text) || ' with some more words', i % 2 = 0, i"
        f" from generate_series({first}, {first + rows - 1}) i"
    )
