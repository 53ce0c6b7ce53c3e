"""Several databases in one storm: what they are called, the rules that read them, and whose each row is.

Two of them are shards of one tag. All have the same tables, so ids occur in each. A device tells rows apart by the
column `origin`, which the rules add. What a guest's room gives across databases, each checkpoint tells by itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache

from headwater_rules.plan import shard_of, tag_of
from tests.storm.tables import CONFIG, RULES, Shown, further
from tests.support.sync_configs import auto_streams

ALONE = "default"
NAMES = (ALONE, "app/east", "app/west", "crm")
ORIGIN = "origin"
EVERY_GUEST, FAR_GUESTS = "every_guest", "far_guests"

ShownBySource = Mapping[str, Mapping[str, Shown]]
"""By source and user, what a device shows of that source."""


def names_of(count: int) -> tuple[str, ...]:
    """The names of so many sources."""
    assert 1 <= count <= len(NAMES), f"there are names for {len(NAMES)} sources"
    return NAMES[:count]


def config_of(names: tuple[str, ...]) -> str:
    """The sync config of a service with these sources."""
    if names == (ALONE,):
        return CONFIG
    queries: dict[str, str] = {}
    tags = _tags(names)
    for tag in tags:
        for table, condition in RULES.items():
            where = condition.replace("room IN (SELECT id FROM rooms", _of_one_shard(tag))
            queries[f"{tag}_{table}"] = _select(tag, table, table, where)
        far = f"WHERE room IN (SELECT id FROM {_partner(tag, tags)}.public.rooms WHERE owner = auth.user_id())"
        queries |= {f"{tag}_{name}": query for name, query in further(f"{tag}.public.", ORIGIN).items()}
        queries[f"{tag}_{EVERY_GUEST}"] = _select(tag, "guests", EVERY_GUEST, "")
        queries[f"{tag}_{FAR_GUESTS}"] = _select(tag, "guests", FAR_GUESTS, far)
    return auto_streams(**queries)


def _of_one_shard(tag: str) -> str:
    """Guests are those of rooms in their own database, even where another shard has a room of that name."""
    return f"guests.source() || room IN (SELECT rooms.source() || rooms.id AS room FROM {tag}.public.rooms"


def _select(tag: str, table: str, output: str, where: str) -> str:
    named = f"{tag}.public.{table}" + ("" if output == table else f" AS {output}")
    return f"SELECT {output}.*, {output}.source() AS {ORIGIN} FROM {named} {where}".rstrip()


def _tags(names: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(map(tag_of, names)))


def _partner(tag: str, tags: list[str]) -> str:
    """The tag whose rooms decide about the guests of this one."""
    return tags[(tags.index(tag) + 1) % len(tags)]


def by_origin(names: tuple[str, ...]) -> dict[str, str]:
    """The names of the sources by what their rows have as origin."""
    return {"": ALONE} if names == (ALONE,) else {shard_of(name) or tag_of(name): name for name in names}


def faults_across(shown: ShownBySource) -> Iterator[str]:
    """Guests that a device has and should not have by the rooms that it has of the other database, and those that it
    lacks."""
    names = tuple(shown)
    if names == (ALONE,):
        return
    tags = _tags(names)
    for name in names:
        partner = _partner(tag_of(name), tags)
        for user, own in shown[name].items():
            rooms = {
                _field(text, "id")
                for other in names
                if tag_of(other) == partner
                for table, text in shown[other][user]
                if table == "rooms"
            }
            guests = ((text, count) for (table, text), count in own.items() if table == EVERY_GUEST)
            wanted = Counter({text: count for text, count in guests if _field(text, "room") in rooms})
            found = Counter({text: count for (table, text), count in own.items() if table == FAR_GUESTS})
            if wanted != found:
                lacks, extra = list((wanted - found).elements())[:5], list((found - wanted).elements())[:5]
                yield f"{user} lacks guests of {name} by the rooms of {partner}: {lacks}, and has {extra} too many"


@lru_cache(maxsize=10_000)
def _field(text: str, name: str) -> str:
    return str(json.loads(text).get(name))
