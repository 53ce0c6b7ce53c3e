"""Documents with something wrong in them: another value, a field too many or too few, too much, too deep."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final

import bson
import orjson
from bson.errors import BSONError

from tests.unit.api.hostile.damage import damaged


def _nested(levels: int) -> object:
    value: object = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


HOSTILE: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 3, 4, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**40,
    0.5, -0.0, 1e308, 1e-320, float("inf"), float("nan"),
    "", " ", "0", "1", "-1", "+1", "1.0", "01", "1e3", "٣", "1" * 19, "9" * 19, "9223372036854775807",
    "9223372036854775808", "9" * 400, "null", "true", "u1", "u2", "u1/c1", "mine", "shared", "nothing",
    "\0", "a\0b", "\ud800", "\udfff x", "\u2028", "\U0001f600" * 40, "\r\nset: x",
    "../../etc/passwd", "' or 1=1 --", "\"; drop table notes; --", "%s%n", "{}", "[]", "__proto__", "${jndi:x}",
    [], {}, [[]], [{}], [None], [1, "2", None], {"": ""}, {"\0": 1}, {"a": {"b": {}}}, {"$gt": ""},
)  # fmt: skip

LARGE: Final[tuple[Any, ...]] = (
    "é" * 600, "a" * 1025, "x" * 20_000, ["x"] * 1500, dict.fromkeys(map(str, range(300)), 1),
    _nested(50), _nested(120), _nested(400),
)  # fmt: skip
"""Values that go beyond some limit. They take long to write, and so come more seldom."""

TEXTS: Final[tuple[bytes, ...]] = (
    b"", b" ", b"null", b"[]", b"{}", b"1", b'""', b"true", b"{", b"}", b"[[", b'{"a":1,}', b"{'a':1}",
    b"\xff\xfe{\0}\0",
    b"\xef\xbb\xbf{}", b'{"a":1}{"a":2}', b'{"a":1,"a":2}', b"{} trailing", b"/* */{}", b"NaN", b"-", b"1e99999",
    b'"\\ud800"', b'{"\\ud800":1}', b'"\\u0000"', b"[" * 5_000, b'{"a":' * 5_000, b"[" * 60_000 + b"]" * 60_000,
    b"1" * 5_000, b"\0" * 100, b'"' + b"a" * 50_000 + b'"', b"a=1&b=2", b"<xml/>", b"--x\r\ncontent-disposition: x\r\n",
)  # fmt: skip
"""Bodies that are no document of ours, whatever was expected."""

_Way = Callable[[Any, Any, random.Random], None]


def damaged_json(chance: random.Random, document: object) -> bytes:
    """The text of a document with something wrong in it: mostly still JSON."""
    kind = chance.random()
    if kind < 0.1:
        return chance.choice(TEXTS)
    text = json.dumps(damaged_document(chance, document), ensure_ascii=chance.random() < 0.8, separators=(",", ":"))
    written = text.encode("utf-8", "surrogatepass")
    return written if kind < 0.75 else damaged(chance, written)


def damaged_bson(chance: random.Random, document: dict[str, Any]) -> bytes:
    """The same as BSON: half of it can still be read."""
    try:
        written = bson.encode(damaged_document(chance, document))
    except (BSONError, OverflowError, UnicodeError, TypeError, RecursionError):
        written = bson.encode(document)
    return written if chance.random() < 0.5 else damaged(chance, written)


def damaged_document(chance: random.Random, document: Any) -> Any:
    """A copy with one to three things wrong."""
    copy = {"whole": orjson.loads(orjson.dumps(document))}
    for _ in range(chance.randint(1, 3)):
        places = _places(copy)
        if places:
            chance.choice(_WAYS)(*chance.choice(places), chance)
    return copy.get("whole")


def _places(root: Any) -> list[tuple[Any, Any]]:
    """Every value within, as what holds it and its key there."""
    found: list[tuple[Any, Any]] = []
    waiting = [root]
    while waiting and len(found) < 200:
        container = waiting.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], dict | list) and container[key]:
                waiting.append(container[key])
    return found


def _hostile(chance: random.Random) -> Any:
    value = chance.choice(LARGE if chance.random() < 0.05 else HOSTILE)
    return deepcopy(value) if isinstance(value, dict | list) else value


def _replace(container: Any, key: Any, chance: random.Random) -> None:
    container[key] = _hostile(chance)


def _delete(container: Any, key: Any, _: random.Random) -> None:
    del container[key]


def _add(container: Any, key: Any, chance: random.Random) -> None:
    if isinstance(container, dict):
        container[chance.choice(("", "x", "client_id", "streams", "\0", "a" * 400))] = _hostile(chance)
    else:
        container.insert(key, _hostile(chance))


def _rename(container: Any, key: Any, chance: random.Random) -> None:
    if isinstance(container, dict):
        container[chance.choice((key.upper(), key + " ", "é", "\ud800"))] = container.pop(key)


def _wrap(container: Any, key: Any, chance: random.Random) -> None:
    container[key] = [container[key]] if chance.random() < 0.5 else {"a": container[key]}


def _text(container: Any, key: Any, _: random.Random) -> None:
    container[key] = json.dumps(container[key])


def _many(container: Any, key: Any, chance: random.Random) -> None:
    value = container[key]
    large = isinstance(value, dict | list) and len(value) > 20
    container[key] = [value] * (2 if large else chance.choice((2, 2, 2, 30, 1100)))


_WAYS: Final[tuple[_Way, ...]] = (_replace, _replace, _replace, _delete, _add, _rename, _wrap, _text, _many)
