"""The functions of the rule language, and their translation to SQLite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from sqlglot import exp

from headwater_rules.compiler.expressions import moments
from headwater_rules.compiler.expressions.fragment import Frag, Kind, build, chain, choice, text, truth
from headwater_rules.compiler.expressions.hints import single_extreme, unknown_function
from headwater_rules.compiler.expressions.trust import Trust, holding
from headwater_rules.errors import Code, Place, RuleError

_MAX_INDEX_SEGMENTS = 3
_MAX_INDEX_DIGITS = 9
_MAX_PARTS = 200
_MANY = 100
_NUMERIC = {Kind.CERTAIN, Kind.LOGICAL, Kind.INTEGER, Kind.NUMBER}
_MAX_WRITTEN = 20_000  # characters


@dataclass(frozen=True, slots=True)
class _Function:
    """`texts` says that the arguments are converted to text first, so that reals are printed as `||` does."""

    sql: str
    least: int
    most: int
    kind: Kind
    texts: bool = False


_PLAIN = {
    "upper": _Function("upper", 1, 1, Kind.TEXT),
    "lower": _Function("lower", 1, 1, Kind.TEXT),
    "trim": _Function("trim", 1, 2, Kind.TEXT, texts=True),
    "ltrim": _Function("ltrim", 1, 2, Kind.TEXT, texts=True),
    "rtrim": _Function("rtrim", 1, 2, Kind.TEXT, texts=True),
    "replace": _Function("replace", 3, 3, Kind.TEXT, texts=True),
    "concat": _Function("concat", 1, _MANY, Kind.TEXT, texts=True),
    "concat_ws": _Function("concat_ws", 2, _MANY, Kind.TEXT, texts=True),
    "hex": _Function("hw_hex", 1, 1, Kind.TEXT),
    "base64": _Function("base64", 1, 1, Kind.TEXT),
    "length": _Function("hw_length", 1, 1, Kind.INTEGER),
    "instr": _Function("hw_instr", 2, 2, Kind.INTEGER),
    "typeof": _Function("typeof", 1, 1, Kind.TEXT),
    "uuid_blob": _Function("uuid_blob", 1, 1, Kind.ANY),
    "ifnull": _Function("ifnull", 2, 2, Kind.ANY),
    "coalesce": _Function("coalesce", 2, _MANY, Kind.ANY),
    "nullif": _Function("nullif", 2, 2, Kind.ANY),
    "abs": _Function("abs", 1, 1, Kind.NUMBER),
    "round": _Function("round", 1, 2, Kind.NUMBER),
    "sign": _Function("sign", 1, 1, Kind.NUMBER),
    "floor": _Function("floor", 1, 1, Kind.NUMBER),
    "ceil": _Function("ceil", 1, 1, Kind.NUMBER),
    "ceiling": _Function("ceil", 1, 1, Kind.NUMBER),
    "trunc": _Function("trunc", 1, 1, Kind.NUMBER),
    "json": _Function("json", 1, 1, Kind.TEXT),
    "json_array": _Function("json_array", 0, _MANY, Kind.TEXT),
    "json_keys": _Function("json_keys", 1, 1, Kind.TEXT),
    "json_valid": _Function("json_valid", 1, 1, Kind.LOGICAL),
    "st_asgeojson": _Function("st_asgeojson", 1, 1, Kind.TEXT),
    "st_astext": _Function("st_astext", 1, 1, Kind.TEXT),
    "st_x": _Function("st_x", 1, 1, Kind.NUMBER),
    "st_y": _Function("st_y", 1, 1, Kind.NUMBER),
}
_SPECIAL = {
    "iif": (3, 3),
    "min": (2, _MANY),
    "max": (2, _MANY),
    "substring": (2, 3),
    "substr": (2, 3),
    "json_extract": (2, 2),
    "json_array_length": (1, 2),
    "json_type": (1, 2),
    "json_object": (0, _MANY),
    **dict.fromkeys(moments.FUNCTIONS, (0, moments.MOST_ARGUMENTS)),
}

ROW_FUNCTIONS = frozenset({"row_id", "table_name", "table_suffix", "schema"})
JSON_READERS = frozenset({"json_extract", "json_array_length", "json_keys"})
KNOWN = frozenset({*_PLAIN, *_SPECIAL})


def call(name: str, arguments: Sequence[Frag], nodes: Sequence[exp.Expr], place: Place, *, fixed: bool = True) -> Frag:
    """The call of a function with translated arguments. `nodes` are the arguments as written, for those that must be
    literals; `fixed` is described at `json_access`. Raises RuleError for an unknown function or a wrong number of
    arguments."""
    plain = _PLAIN.get(name)
    least, most = (plain.least, plain.most) if plain else _SPECIAL.get(name, (-1, -1))
    if least < 0:
        raise unknown_function(name, KNOWN, place)
    if name in {"min", "max"} and len(arguments) == 1:
        raise single_extreme(name, place)
    if not least <= len(arguments) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        plural = "" if wanted == "1" else "s"
        raise RuleError(Code.UNKNOWN_FUNCTION, f"`{name}` takes {wanted} argument{plural}, not {len(arguments)}", place)
    if plain:
        taken = [text(argument) for argument in arguments] if plain.texts else arguments
        return _written(plain.sql, taken, plain.kind, place, _trust(name, taken))
    if name in moments.FUNCTIONS:
        return moments.call(name, arguments, nodes, place)
    match name:
        case "iif":
            condition, trust = truth(arguments[0]), choice(arguments[1:], arguments[:1])
            return _written("iif", [condition, *arguments[1:]], Kind.ANY, place, trust)
        case "min" | "max":
            return _extreme(name, arguments, place)
        case "substring" | "substr":
            return _substring(arguments, nodes, place)
        case "json_object":
            return _object(arguments, place)
        case "json_extract":
            return json_access(arguments[0], _rooted(nodes[1], place), "->>", place, fixed=fixed)
        case _:
            inner = (
                arguments[0] if len(nodes) == 1 else json_access(arguments[0], _rooted(nodes[1], place), "->", place)
            )
            return _written(name, [inner], Kind.INTEGER if name == "json_array_length" else Kind.TEXT, place)


def _extreme(name: str, arguments: Sequence[Frag], place: Place) -> Frag:
    if all(argument.kind in _NUMERIC for argument in arguments):
        return _written(name, arguments, Kind.NUMBER, place)
    first = build(arguments[0].kind, place, arguments[0], " COLLATE utf16")  # texts have the order of `<`
    return _written(name, [first, *arguments[1:]], Kind.ANY, place)


def _substring(arguments: Sequence[Frag], nodes: Sequence[exp.Expr], place: Place) -> Frag:
    if isinstance(nodes[1], exp.Literal) and nodes[1].is_string:
        raise RuleError(
            Code.UNSUPPORTED, "the start of `substring` is a number", place, "regular expressions are not supported"
        )
    numbers = [build(Kind.INTEGER, place, "CAST(", argument, " AS INTEGER)") for argument in arguments[1:]]
    return _written("hw_substring", [arguments[0], *numbers], Kind.ANY, place)


def _object(arguments: Sequence[Frag], place: Place) -> Frag:
    if len(arguments) % 2:
        raise RuleError(
            Code.UNKNOWN_FUNCTION,
            "`json_object` takes keys and values in pairs",
            place,
            "write `json_object('key', x)`",
        )
    pairs = [argument if number % 2 else text(argument) for number, argument in enumerate(arguments)]
    return _written("json_object", pairs, Kind.TEXT, place, holding([pair.trust for pair in pairs]))


def json_access(value: Frag, path: exp.Expr, operator: str, place: Place, *, fixed: bool = True) -> Frag:
    """`value -> path` or `value ->> path`. Unless `fixed`, a path without `$` is split at dots too, and a JSON null is
    the text `null` for `->>` and null for `->`. Raises RuleError when the path is not a literal."""
    if value.kind in {Kind.CERTAIN, Kind.LOGICAL}:
        raise RuleError(
            Code.UNSUPPORTED, f"`{operator}` is applied to a condition", place, "put brackets around the JSON access"
        )
    kind = Kind.TEXT if operator == "->" else Kind.ANY
    paths = _sqlite_paths(_segments(path, place, fixed), place)
    readings = [_reading(value, operator, quoted(each), kind, place, fixed) for each in paths]
    if len(readings) == 1:
        return readings[0]
    written = sum(len(part) for reading in readings for part in reading.parts if isinstance(part, str))
    if sum(len(reading.parts) for reading in readings) > _MAX_PARTS or written > _MAX_WRITTEN:
        raise RuleError(Code.TOO_MANY, "too many array elements in nested JSON accesses", place, "use one path `$.a.0`")
    return _written("coalesce", readings, kind, place)


def quoted(value: str) -> str:
    """A SQLite text literal."""
    return "'" + value.replace("'", "''") + "'"


def _trust(name: str, arguments: Sequence[Frag]) -> Trust | None:
    """The trust in the value of a function that keeps the token's part of its arguments; None for all others."""
    match name:
        case "coalesce" | "ifnull":
            return choice(arguments)
        case "nullif":
            return choice(arguments[:1], arguments[1:])
        case "concat":
            return chain(arguments)
        case "concat_ws":
            return chain([part for argument in arguments[1:] for part in (arguments[0], argument)])
        case "json_array":
            return holding([argument.trust for argument in arguments])
        case "upper" | "lower" | "trim" | "hex" | "base64" | "json" if len(arguments) == 1:
            return holding([arguments[0].trust])
    return None


def _written(name: str, arguments: Sequence[Frag], kind: Kind, place: Place, trust: Trust | None = None) -> Frag:
    pieces: list[str | Frag] = [f"{name}("]
    for number, argument in enumerate(arguments):
        pieces += [", ", argument] if number else [argument]
    return build(kind, place, *pieces, ")", trust=trust)


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
    written = str(path.this)
    if not (path.is_string and written.startswith("$")):
        return [written] if fixed or not path.is_string else written.split(".")
    head, *segments = written.split(".")
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
    """The SQLite paths for all readings of the segments. SQLite distinguishes array elements from keys, but the
    language does not, so every number is read both ways."""
    if sum(map(_is_index, segments)) > _MAX_INDEX_SEGMENTS:
        raise RuleError(Code.TOO_MANY, f"more than {_MAX_INDEX_SEGMENTS} array elements in one JSON path", place)
    readings = [[f"[{segment}]", _key(segment)] if _is_index(segment) else [_key(segment)] for segment in segments]
    return ["$" + "".join(reading) for reading in product(*readings)]


def _is_index(segment: str) -> bool:
    """Canonical numbers only, as in JavaScript: `00` and digits of other scripts are keys."""
    digits = segment.isascii() and segment.isdecimal() and len(segment) <= _MAX_INDEX_DIGITS
    return digits and (segment == "0" or segment[0] != "0")


def _key(segment: str) -> str:
    return "." + json.dumps(segment, ensure_ascii=False)
