"""Writes rows that have one entry made of columns alone, which is what most rules amount to, by code that is generated
for the table. That takes two thirds of the time of converting, evaluating and rendering one after the other.

The code does only what is usual. For any other row it returns None and has changed nothing, so that `TableTransform`
does it in the general way, which is also what says what is wrong with a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import orjson

from headwater.oplog.keys import StoreKeys
from headwater.oplog.limits import SURELY_AN_OP
from headwater.oplog.op import put_checksum, put_pieces
from headwater.oplog.transform import Bucket, DraftOp, PlainWrite, draft_op, members_pieces, only_member
from headwater_rules.evaluate.naming import as_text, key_text
from headwater_rules.evaluate.rows import PlainEntry
from headwater_rules.plan import Value

_KNOWN_BUCKETS = 1 << 11
_LONGEST_KNOWN = 500

_Place = tuple[int, str, str, str, Bucket]
"""A bucket's key, its name, what memberships in it begin and end with, and the bucket."""


class _Places(dict[tuple[Value, ...], _Place]):
    """The bucket by the values of its parameters, of which equal ones name the same. Remembers some, since there is one
    of these for each table. `places[params]` is None, and nothing is remembered, where there is no bucket."""

    def __init__(self, entry: PlainEntry, keys: StoreKeys, definition: str) -> None:
        super().__init__()
        self._keys = keys
        self._entry = entry
        self._definition = definition

    def __missing__(self, params: tuple[Value, ...]) -> _Place | None:
        name = key_text(self._entry.name, params)
        if name is None:
            return None
        bucket = Bucket(self._keys.bucket(name), name, self._definition)
        place = (bucket.key, name, *members_pieces(bucket.key, self._entry.table), bucket)
        if len(name) <= _LONGEST_KNOWN:
            if len(self) >= _KNOWN_BUCKETS:
                self.clear()
            self[params] = place
        return place


def plain_write(
    entry: PlainEntry,
    converters: Sequence[Callable[[str], Value] | None],
    table_id: int,
    keys: StoreKeys,
    definition: str,
) -> PlainWrite:
    """The code for the rows of a table: `converters` are those of its columns, `definition` is the name of the bucket
    definition that the entry belongs to."""
    values = [f"c{number}" if function is None else f"v{number}" for number, function in enumerate(converters)]
    start, middle = put_pieces(entry.table, str(table_id))
    scope: dict[str, object] = {f"f{number}": function for number, function in enumerate(converters)}
    scope |= {
        "as_text": as_text,
        "checksum_of": put_checksum,
        "digest_of": keys.content,
        "draft": draft_op,
        "dumps": orjson.dumps,
        "middle": middle,
        "most": SURELY_AN_OP,
        "only_member": only_member,
        "places": _Places(entry, keys, definition),
        "start": start,
        "table": entry.table,
        "DraftOp": DraftOp,
    }
    exec("\n".join(_code(entry, values)), scope)  # noqa: S102  # built from numbers and quoted names alone
    return cast(PlainWrite, scope["write"])


def _code(entry: PlainEntry, values: Sequence[str]) -> list[str]:
    named = ", ".join(f"{name!r}: {values[position]}" for name, position in entry.columns.items())
    params = "".join(f"{values[position]}, " for position in entry.params)
    return [
        "def write(cells, row_id, previous, ops, buckets):",
        " try:",
        f"  [{', '.join(f'c{number}' for number in range(len(values)))}] = cells",
        *(
            f"  {value} = None if c{number} is None else f{number}(c{number})"
            for number, value in enumerate(values)
            if value != f"c{number}"
        ),
        f"  place = places[({params})]",
        f"  if place is None{_other_id(entry, values)}: return None",
        f"  data = dumps({{{named}}}).decode()",
        " except (ValueError, KeyError, TypeError):",
        "  return None",
        " if len(data) > most: return None",
        " key, name, head, tail, bucket = place",
        " digest = digest_of(table, row_id, data)",
        " members = f'{head}{digest}{tail}'",
        " if previous == members: return members",
        " if previous and not only_member(previous, head, tail): return None",
        " buckets[name] = bucket",
        " checksum = checksum_of(digest)",
        """ body = f'{start}{dumps(row_id).decode()},"checksum":{checksum}{middle}{dumps(data).decode()}}}'""",
        " ops.append(draft(DraftOp, (key, checksum, body)))",
        " return members",
    ]


def _other_id(entry: PlainEntry, values: Sequence[str]) -> str:
    """The condition that a row's object id is not its row id."""
    if "id" not in entry.columns:
        return ""
    value = values[entry.columns["id"]]
    text = value if value.startswith("c") else f"as_text({value})"
    return f" or ({value} is not None and {text} != row_id)"
