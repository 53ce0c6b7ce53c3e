"""The functions that a rule may call, and how each is written in SQLite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from sqlglot import exp

from headwater_rules.errors import Code, Place, RuleError, did_you_mean
from headwater_rules.fragment import Frag, Kind, build, truth

_MAX_INDEX_SEGMENTS = 3
_MAX_PARTS = 200


@dataclass(frozen=True, slots=True)
class _Function:
    sql: str
    least: int
    most: int
    kind: Kind


_PLAIN = {
    "upper": _Function("upper", 1, 1, Kind.TEXT),
    "lower": _Function("lower", 1, 1, Kind.TEXT),
    "substring": _Function("substr", 2, 3, Kind.ANY),
    "hex": _Function("hex", 1, 1, Kind.TEXT),
    "base64": _Function("base64", 1, 1, Kind.TEXT),
    "length": _Function("length", 1, 1, Kind.INTEGER),
    "typeof": _Function("typeof", 1, 1, Kind.TEXT),
    "uuid_blob": _Function("uuid_blob", 1, 1, Kind.ANY),
    "ifnull": _Function("ifnull", 2, 2, Kind.ANY),
    "coalesce": _Function("coalesce", 2, 100, Kind.ANY),
    "instr": _Function("instr", 2, 2, Kind.INTEGER),
    "json_keys": _Function("json_keys", 1, 1, Kind.TEXT),
    "json_valid": _Function("json_valid", 1, 1, Kind.LOGICAL),
}
_SPECIAL = {"iif": (3, 3), "json_extract": (2, 2), "json_array_length": (1, 2), "unixepoch": (1, 3), "datetime": (1, 3)}
_MODIFIERS = frozenset({"unixepoch", "subsec", "subsecond"})
_NONDETERMINISTIC = frozenset(
    {
        "now", "random", "randomblob", "gen_random_uuid", "uuid_generate_v4", "clock_timestamp", "current_timestamp",
        "current_date", "current_time", "localtime", "localtimestamp",
    }
)  # fmt: skip
_INSTEAD = {
    "any": "write `x IN array`",
    "substr": "write `substring`",
    "count": "aggregate in Postgres, or on the device",
    "nullif": "write `CASE WHEN a = b THEN NULL ELSE a END`",
}

ROW_FUNCTIONS = frozenset({"row_id", "table_name", "table_suffix", "schema"})
KNOWN = frozenset({*_PLAIN, *_SPECIAL})


def call(name: str, arguments: Sequence[Frag], nodes: Sequence[exp.Expr], place: Place, *, fixed: bool = True) -> Frag:
    """The call of a function on translated arguments; `nodes` are the same as written, for those that must be
    literals, and `fixed` is that of `json_access`. Raises RuleError for an unknown function or a wrong number of
    arguments."""
    plain = _PLAIN.get(name)
    least, most = (plain.least, plain.most) if plain else _SPECIAL.get(name, (-1, -1))
    if least < 0:
        raise _unknown(name, place)
    if not least <= len(arguments) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise RuleError(Code.UNKNOWN_FUNCTION, f"`{name}` takes {wanted} arguments, not {len(arguments)}", place)
    if plain:
        return _written(plain.sql, arguments, plain.kind, place)
    match name:
        case "iif":
            return _written("iif", [truth(arguments[0]), *arguments[1:]], Kind.ANY, place)
        case "json_extract":
            return json_access(arguments[0], _rooted(nodes[1], place), "->>", place, fixed=fixed)
        case "json_array_length":
            inner = (
                arguments[0] if len(nodes) == 1 else json_access(arguments[0], _rooted(nodes[1], place), "->", place)
            )
            return _written("json_array_length", [inner], Kind.INTEGER, place)
        case _:
            return _moment(name, arguments[0], nodes[1:], place)


def json_access(value: Frag, path: exp.Expr, operator: str, place: Place, *, fixed: bool = True) -> Frag:
    """`value -> path` or `value ->> path`. Unless `fixed`, a path without `$` is split at dots too, and what stands
    for a JSON null is the text `null` from `->>` and null from `->`. Raises RuleError when the path is no literal."""
    if value.kind in {Kind.CERTAIN, Kind.LOGICAL}:
        raise RuleError(
            Code.UNSUPPORTED, f"`{operator}` is applied to a condition", place, "put brackets around the JSON access"
        )
    kind = Kind.TEXT if operator == "->" else Kind.ANY
    paths = _sqlite_paths(_segments(path, place, fixed), place)
    readings = [_reading(value, operator, quoted(each), kind, place, fixed) for each in paths]
    if len(readings) == 1:
        return readings[0]
    if sum(len(reading.parts) for reading in readings) > _MAX_PARTS:
        raise RuleError(Code.TOO_MANY, "too many array elements in nested JSON accesses", place, "use one path `$.a.0`")
    return _written("coalesce", readings, kind, place)


def quoted(text: str) -> str:
    """A SQLite text literal."""
    return "'" + text.replace("'", "''") + "'"


def _written(name: str, arguments: Sequence[Frag], kind: Kind, place: Place) -> Frag:
    pieces: list[str | Frag] = [f"{name}("]
    for number, argument in enumerate(arguments):
        pieces += [", ", argument] if number else [argument]
    return build(kind, place, *pieces, ")")


def _reading(value: Frag, operator: str, path: str, kind: Kind, place: Place, fixed: bool) -> Frag:
    found = build(kind, place, "(", value, f" {operator} {path})")
    if fixed:
        return found
    if operator == "->":
        return build(kind, place, "nullif(", found, ", 'null')")
    return build(kind, place, "(CASE json_type(", value, f", {path}) WHEN 'null' THEN 'null' ELSE ", found, " END)")


def _segments(path: exp.Expr, place: Place, fixed: bool) -> list[str]:
    if not isinstance(path, exp.Literal):
        raise RuleError(Code.UNSUPPORTED, "the path of a JSON access must be a literal", place, "write it in quotes")
    text = str(path.this)
    if not (path.is_string and text.startswith("$")):
        return [text] if fixed or not path.is_string else text.split(".")
    head, *segments = text.split(".")
    if head != "$" or any("[" in segment for segment in segments):
        raise RuleError(
            Code.UNSUPPORTED, "`[…]` is not supported in a JSON path", place, "write `$.a.0` for the first element of a"
        )
    return segments


def _rooted(path: exp.Expr, place: Place) -> exp.Expr:
    if isinstance(path, exp.Literal) and path.is_string and not str(path.this).startswith("$"):
        raise RuleError(Code.UNSUPPORTED, "this JSON path must start with `$`", place, "write `$.key`")
    return path


def _sqlite_paths(segments: Sequence[str], place: Place) -> list[str]:
    """SQLite tells array elements from keys, the language does not: every reading of a number is tried."""
    if sum(segment.isdecimal() for segment in segments) > _MAX_INDEX_SEGMENTS:
        raise RuleError(Code.TOO_MANY, f"more than {_MAX_INDEX_SEGMENTS} array elements in one JSON path", place)
    readings = [
        [f"[{int(segment)}]", _key(segment)] if segment.isdecimal() else [_key(segment)] for segment in segments
    ]
    return ["$" + "".join(reading) for reading in product(*readings)]


def _key(segment: str) -> str:
    return "." + json.dumps(segment, ensure_ascii=False)


def _moment(name: str, value: Frag, modifiers: Sequence[exp.Expr], place: Place) -> Frag:
    written = []
    for modifier in modifiers:
        text = str(modifier.this).lower() if isinstance(modifier, exp.Literal) and modifier.is_string else ""
        if text not in _MODIFIERS:
            raise RuleError(
                Code.UNSUPPORTED, f"unsupported modifier of `{name}`", place, "use 'unixepoch', 'subsec' or 'subsecond'"
            )
        written.append(f", {quoted(text)}")
    # SQLite takes these three words, as a value, for the present moment
    guarded: Frag = value
    for word in ("now", "subsec", "subsecond"):
        guarded = build(Kind.ANY, place, "nullif(", guarded, f" COLLATE NOCASE, '{word}')")
    kind = Kind.NUMBER if name == "unixepoch" else Kind.TEXT
    return build(kind, place, f"{name}(", guarded, *written, ")")


def _unknown(name: str, place: Place) -> RuleError:
    if name in _NONDETERMINISTIC:
        return RuleError(
            Code.UNKNOWN_FUNCTION,
            f"`{name}` is not allowed: a rule must give the same answer whenever it is evaluated",
            place,
            "keep the value in a column of the row",
        )
    hint = _INSTEAD.get(name) or did_you_mean(name, KNOWN) or f"the functions are {', '.join(sorted(KNOWN))}"
    return RuleError(Code.UNKNOWN_FUNCTION, f"unknown function `{name}`", place, hint)
