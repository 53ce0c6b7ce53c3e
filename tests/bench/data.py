"""The benchmarks' table: small rows of six columns with about 60 characters of text, in ten buckets."""

from __future__ import annotations

from headwater_rules.compiler.variants import MAX_VARIANTS

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


def small_tables(count: int, rows: int) -> list[str]:
    """SQL that makes tables of so many rows each, and publishes them."""
    made = [
        statement
        for number in range(count)
        for statement in (
            f"create table t{number} (id bigint primary key, title text)",
            f"insert into t{number} select i, md5(i::text) from generate_series(1, {rows}) i",
        )
    ]
    return [*made, "create publication headwater for all tables"]


def small_streams(count: int) -> str:
    """A sync config that gives everybody all of `small_tables`."""
    streams = "".join(
        f"  all{first}:\n    auto_subscribe: true\n    queries:\n"
        + "".join(f"      - SELECT id::text AS id, title FROM t{number}\n" for number in tables)
        for first in range(0, count, MAX_VARIANTS)
        for tables in [range(first, min(first + MAX_VARIANTS, count))]
    )
    return f"config: {{edition: 3}}\nstreams:\n{streams}"
