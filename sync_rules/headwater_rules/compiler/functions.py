"""The functions of the rule language, and their translation to SQLite."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from sqlglot import exp

from headwater_rules.compiler.fragment import NUMERIC, ExprKind, Frag, build, chain, choice, joined, text, truth
from headwater_rules.compiler.trust import Trust, holding
from headwater_rules.errors import Edit, RuleCode, RuleError, did_you_mean
from headwater_rules.text.sqltext import edit_of, error_at, unsupported

_MAX_INDEX_SEGMENTS = 3
_MAX_INDEX_DIGITS = 9
_MAX_PARTS = 200
_MANY = 100
_MAX_WRITTEN = 20_000  # characters


_MOMENTS: Final = {
    **dict.fromkeys(("unixepoch", "julianday"), ExprKind.NUMBER),
    **dict.fromkeys(("datetime", "date", "time", "strftime"), ExprKind.TEXT),
}
_MOST_MODIFIED: Final = 10
_CLOCK = r"\d\d:\d\d(?::\d\d(?:\.\d+)?)?"
_MODIFIER: Final = re.compile(
    r"unixepoch|julianday|auto|subsec|subsecond|ceiling|floor|start of (?:year|month|day)|weekday [0-6]"
    r"|[+-]?\d+(?:\.\d+)? +(?:day|hour|minute|second|month|year)s?"
    rf"|[+-]{_CLOCK}|[+-]\d{{4}}-\d\d-\d\d(?: {_CLOCK})?",
    re.ASCII | re.IGNORECASE,
)
_MACHINE_ZONE: Final = frozenset({"localtime", "utc"})


@dataclass(frozen=True, slots=True)
class _Function:
    """`texts` says that the arguments are converted to text first, so that reals are printed as `||` does."""

    sql: str
    least: int
    most: int
    kind: ExprKind
    texts: bool = False


def _plain(kind: ExprKind, names: str, least: int = 1, most: int = 1, *, texts: bool = False) -> dict[str, _Function]:
    """Functions that take their arguments alike. `rule=sqlite`: SQLite's own of that name differs."""
    pairs = (each.partition("=") for each in names.split())
    return {name: _Function(sql or name, least, most, kind, texts) for name, _, sql in pairs}


_PLAIN = {
    **_plain(ExprKind.TEXT, "upper lower hex=hw_hex base64 typeof json json_keys st_asgeojson st_astext"),
    **_plain(ExprKind.TEXT, "trim ltrim rtrim", 1, 2, texts=True),
    **_plain(ExprKind.TEXT, "replace", 3, 3, texts=True),
    **_plain(ExprKind.TEXT, "concat", 1, _MANY, texts=True),
    **_plain(ExprKind.TEXT, "concat_ws", 2, _MANY, texts=True),
    **_plain(ExprKind.TEXT, "json_array", 0, _MANY),
    **_plain(ExprKind.INTEGER, "length=hw_length"),
    **_plain(ExprKind.INTEGER, "instr=hw_instr", 2, 2),
    **_plain(ExprKind.LOGICAL, "json_valid"),
    **_plain(ExprKind.NUMBER, "abs sign floor ceil ceiling=ceil trunc st_x st_y"),
    **_plain(ExprKind.NUMBER, "round", 1, 2),
    **_plain(ExprKind.ANY, "uuid_blob"),
    **_plain(ExprKind.ANY, "ifnull nullif", 2, 2),
    **_plain(ExprKind.ANY, "coalesce", 2, _MANY),
}
_SPECIAL = {
    "iif": (3, 3),
    **dict.fromkeys(("min", "max"), (2, _MANY)),
    **dict.fromkeys(("substring", "substr"), (2, 3)),
    "json_extract": (2, 2),
    **dict.fromkeys(("json_array_length", "json_type"), (1, 2)),
    "json_object": (0, _MANY),
    **dict.fromkeys(_MOMENTS, (0, _MOST_MODIFIED)),
}

JSON_READERS = frozenset({"json_extract", "json_array_length", "json_keys"})
KNOWN = frozenset({*_PLAIN, *_SPECIAL})


def may_aggregate(node: exp.Anonymous) -> bool:
    """Whether a call is of a function that is not known here, or known as an aggregate elsewhere."""
    name = str(node.this).lower()
    return name not in KNOWN or (name in {"min", "max"} and len(node.expressions) == 1)


def call(name: str, arguments: Sequence[Frag], node: exp.Expr, *, fixed: bool = True) -> Frag:
    """The call of a function with translated arguments. `node` holds them as written, for those that must be literals;
    `fixed` is described at `json_access`. Raises RuleError for an unknown function or a wrong number of arguments."""
    nodes = node.expressions
    plain = _PLAIN.get(name)
    least, most = (plain.least, plain.most) if plain else _SPECIAL.get(name, (-1, -1))
    if least < 0:
        raise unknown_function(name, KNOWN, node)
    if name in {"min", "max"} and len(arguments) == 1:  # which is an aggregate elsewhere
        message = f"`{name}` of one argument is an aggregate and not supported"
        raise wrong_call(message, node, f"give it two or more arguments; {_ONE_ROW}")
    if not least <= len(arguments) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        plural = "" if wanted == "1" else "s"
        raise wrong_call(f"`{name}` takes {wanted} argument{plural}, not {len(arguments)}", node)
    if plain:
        taken = [text(argument) for argument in arguments] if plain.texts else arguments
        return _written(plain.sql, taken, plain.kind, node, _trust(name, taken))
    if name in _MOMENTS:
        return _moment(name, arguments, nodes, node)
    match name:
        case "iif":
            condition, trust = truth(arguments[0]), choice(arguments[1:], arguments[:1])
            return _written("iif", [condition, *arguments[1:]], ExprKind.ANY, node, trust)
        case "min" | "max":
            return _extreme(name, arguments, node)
        case "substring" | "substr":
            return _substring(arguments, nodes, node)
        case "json_object":
            return _object(arguments, node)
        case "json_extract":
            return json_access(arguments[0], _rooted(nodes[1], node), "->>", node, fixed=fixed)
        case _:
            inner = arguments[0] if len(nodes) == 1 else json_access(arguments[0], _rooted(nodes[1], node), "->", node)
            return _written(name, [inner], ExprKind.INTEGER if name == "json_array_length" else ExprKind.TEXT, node)


def _extreme(name: str, arguments: Sequence[Frag], node: exp.Expr) -> Frag:
    if all(argument.kind in NUMERIC for argument in arguments):
        return _written(name, arguments, ExprKind.NUMBER, node)
    first = build(arguments[0].kind, node, arguments[0], " COLLATE utf16")  # texts have the order of `<`
    return _written(name, [first, *arguments[1:]], ExprKind.ANY, node)


def _substring(arguments: Sequence[Frag], nodes: Sequence[exp.Expr], node: exp.Expr) -> Frag:
    if isinstance(nodes[1], exp.Literal) and nodes[1].is_string:
        raise unsupported("the start of `substring` is a number", node, "regular expressions are not supported")
    numbers = [build(ExprKind.INTEGER, node, "CAST(", argument, " AS INTEGER)") for argument in arguments[1:]]
    return _written("hw_substring", [arguments[0], *numbers], ExprKind.ANY, node)


def _object(arguments: Sequence[Frag], node: exp.Expr) -> Frag:
    if len(arguments) % 2:
        raise wrong_call("`json_object` takes keys and values in pairs", node, "write `json_object('key', x)`")
    pairs = [argument if number % 2 else text(argument) for number, argument in enumerate(arguments)]
    return _written("json_object", pairs, ExprKind.TEXT, node, holding([pair.trust for pair in pairs]))


def json_access(value: Frag, path: exp.Expr, operator: str, node: exp.Expr, *, fixed: bool = True) -> Frag:
    """`value -> path` or `value ->> path`. Unless `fixed`, a path without `$` is split at dots too, and a JSON null is
    the text `null` for `->>` and null for `->`. Raises RuleError when the path is not a literal."""
    if value.kind in {ExprKind.CERTAIN, ExprKind.LOGICAL}:
        raise unsupported(f"`{operator}` is applied to a condition", node, "put brackets around the JSON access")
    kind = ExprKind.TEXT if operator == "->" else ExprKind.ANY
    paths = _sqlite_paths(_segments(path, node, fixed), node)
    readings = [_reading(value, operator, quoted(each), kind, node, fixed) for each in paths]
    if len(readings) == 1:
        return readings[0]
    written = sum(len(part) for reading in readings for part in reading.parts if isinstance(part, str))
    if sum(len(reading.parts) for reading in readings) > _MAX_PARTS or written > _MAX_WRITTEN:
        message = "too many array elements in nested JSON accesses"
        raise error_at(RuleCode.TOO_MANY, message, node, "use one path `$.a.0`")
    return _written("coalesce", readings, kind, node)


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


def _written(name: str, arguments: Sequence[Frag], kind: ExprKind, node: exp.Expr, trust: Trust | None = None) -> Frag:
    return joined(kind, node, arguments, ", ", trust, name)


def _reading(value: Frag, operator: str, path: str, kind: ExprKind, node: exp.Expr, fixed: bool) -> Frag:
    found = build(kind, node, "(", value, f" {operator} {path})")
    if fixed:
        return found
    if operator == "->":
        return build(kind, node, "nullif(", found, ", 'null')")
    return build(kind, node, "(CASE json_type(", value, f", {path}) WHEN 'null' THEN 'null' ELSE ", found, " END)")


def _segments(path: exp.Expr, node: exp.Expr, fixed: bool) -> list[str]:
    if not isinstance(path, exp.Literal):
        if not isinstance(node, exp.Dot):
            raise unsupported("the path of a JSON access must be a literal", node, "write it in quotes")
        message = "the name of a parameter is a text in single quotes"
        if not isinstance(path, exp.Column) or path.table:
            raise unsupported(message, node, "write it as `'name'`")
        raise unsupported(message, node, f"write `{quoted(path.name)}`", edit_of(path, quoted(path.name)))
    written = str(path.this)
    if not (path.is_string and written.startswith("$")):
        return [written] if fixed or not path.is_string else written.split(".")
    head, *segments = written.split(".")
    if head != "$" or any("[" in segment for segment in segments):
        raise unsupported("`[…]` is not supported in a JSON path", node, "write `$.a.0` for the first element of a")
    return segments


def _rooted(path: exp.Expr, node: exp.Expr) -> exp.Expr:
    if isinstance(path, exp.Literal) and path.is_string and not str(path.this).startswith("$"):
        raise unsupported("this JSON path must start with `$`", node, "write `$.key`")
    return path


def _sqlite_paths(segments: Sequence[str], node: exp.Expr) -> list[str]:
    """The SQLite paths for all readings of the segments. SQLite distinguishes array elements from keys, but the
    language does not, so every number is read both ways."""
    if sum(map(_is_index, segments)) > _MAX_INDEX_SEGMENTS:
        raise error_at(RuleCode.TOO_MANY, f"more than {_MAX_INDEX_SEGMENTS} array elements in one JSON path", node)
    readings = [[f"[{segment}]", _key(segment)] if _is_index(segment) else [_key(segment)] for segment in segments]
    return ["$" + "".join(reading) for reading in product(*readings)]


def _is_index(segment: str) -> bool:
    """Canonical numbers only, as in JavaScript: `00` and digits of other scripts are keys."""
    digits = segment.isascii() and segment.isdecimal() and len(segment) <= _MAX_INDEX_DIGITS
    return digits and (segment == "0" or segment[0] != "0")


def _key(segment: str) -> str:
    return "." + json.dumps(segment, ensure_ascii=False)


def _moment(name: str, arguments: Sequence[Frag], nodes: Sequence[exp.Expr], node: exp.Expr) -> Frag:
    """The call of a function of date and time, without access to the current time or the machine's time zone. Raises
    RuleError for a modifier that SQLite does not know or that depends on the machine, and when the point in time is
    missing, which SQLite would read as the current time."""
    before = 1 if name == "strftime" else 0
    if len(arguments) <= before:
        message = (
            f"`{name}` without a point in time means the current one, but a rule must give the same answer at any time"
        )
        raise wrong_call(message, node, "write `strftime('%Y-%m-%d', column)`" if before else f"write `{name}(column)`")
    pieces: list[str | Frag] = [f"{name}("]
    if before:
        pieces += [text(arguments[0]), ", "]
    pieces += ["hw_moment(", arguments[before], ")"]
    pieces += [f", '{_modifier(name, modifier, node)}'" for modifier in nodes[before + 1 :]]
    return build(_MOMENTS[name], node, *pieces, ")")


def _modifier(name: str, written: exp.Expr, node: exp.Expr) -> str:
    if not (isinstance(written, exp.Literal) and written.is_string):
        raise unsupported(f"a modifier of `{name}` must be a literal", node, "write it in quotes: '+1 day'")
    modifier = str(written.this)
    if modifier.strip().lower() in _MACHINE_ZONE:
        message = f"the modifier '{modifier}' of `{name}` is not allowed: it depends on the time zone of the machine"
        raise unsupported(message, node, "times are UTC; add an offset like '+02:00'")
    if not _MODIFIER.fullmatch(modifier):
        hint = "use 'unixepoch', 'subsec', '+1 day', '-02:30', 'start of month' or another one of SQLite's"
        raise unsupported(f"unsupported modifier of `{name}`", node, hint)
    return modifier


_ONE_ROW: Final = "a rule sees one row at a time: compute the value in Postgres, or in the device's own query"
_KEEP: Final = "keep the value in a column of the row"
_UNSTEADY: Final = "is not allowed: a rule must give the same answer whenever it is evaluated"

_REFUSED: Final = (
    (_UNSTEADY, f"compare a column with `now()` in the WHERE, or {_KEEP}",
     """now clock_timestamp statement_timestamp transaction_timestamp timeofday current_timestamp current_date
     current_time localtime localtimestamp getdate sysdate curdate curtime utc_timestamp unix_timestamp"""),
    (_UNSTEADY, _KEEP,
     """random rand randomblob setseed uuid newid gen_random_uuid uuid_generate_v1 uuid_generate_v4 uuidv4 uuidv7
     nextval currval lastval txid_current pg_current_xact_id last_insert_rowid changes total_changes version
     sqlite_version current_user session_user current_setting"""),
    ("is an aggregate and not supported", _ONE_ROW,
     """count sum avg total array_agg string_agg group_concat json_agg jsonb_agg json_object_agg jsonb_object_agg
     json_group_array json_group_object jsonb_group_array jsonb_group_object bool_and bool_or every stddev variance
     median percentile percentile_cont percentile_disc mode"""),
    ("is a window function and not supported", _ONE_ROW,
     "row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value"),
    ("is not supported: its last digits depend on the machine", "compute the value in Postgres, or on the device",
     """sqrt cbrt pow power exp ln log log2 log10 sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh
     degrees radians pi"""),
)  # fmt: skip
"""Functions that rules can't have: why, what to do, and their names."""

_INSTEAD: Final = {
    "write `auth.user_id()`": "user_id uid current_user_id",
    "write `auth.parameter('name')`, or `subscription.parameter('name')`": "parameter claim",
    "write `auth.parameters()`": "jwt parameters claims",
    "write `length(x)`": "char_length character_length",
    "write `length(x::blob)`": "octet_length",
    "write `instr(x, part)`": "strpos position charindex",
    "write `substring(x, 1, n)`": "left",
    "write `substring(x, -n)`": "right",
    "write `substring(x, start, n)`": "mid",
    "write `trim(x, characters)`": "btrim",
    "use `instr` and `substring`": "split_part",
    "write `substring(x, 1, n) = 'start'`": "starts_with",
    "write `x LIKE pattern`": "like glob",
    "regular expressions are not supported, use `instr` or `LIKE`": "regexp_match",
    "regular expressions are not supported, use `replace`": "regexp_replace",
    "join the parts with `||`": "printf format",
    "write `strftime('%Y-%m-%d', x)` for a time, `x::text` for a number": "to_char",
    "write `x::numeric`": "to_number",
    "write `date(x)`": "to_date",
    "write `datetime(x, 'unixepoch')`": "to_timestamp",
    "write `date(x)`, or `datetime(x, 'start of month')`": "date_trunc",
    "write `strftime('%Y', x)::integer`": "date_part",
    "write `unixepoch(x)`, or `strftime('%Y', x)::integer`": "extract",
    "subtract two `unixepoch(x)` or `julianday(x)`": "age",
    "subtract two `julianday(x)`": "datediff",
    "subtract two `unixepoch(x)`": "timediff",
    "write `max(a, b)`, which is null if one of them is": "greatest",
    "write `min(a, b)`, which is null if one of them is": "least",
    "write `iif(condition, a, b)`": "if",
    "write `ifnull(a, b)`": "nvl",
    "write `x IS NULL`, or `ifnull(a, b)`": "isnull",
    "write `a % b`": "mod",
    "write `a / b`: dividing integers truncates": "div",
    "write `x IN array`": "any some array_position",
    "write `NOT` and `x IN array`": "all",
    "write `x IN (a, b)` or `json_array(a, b)`": "row",
    "write `json_array(a, b)`": "array json_build_array jsonb_build_array",
    "write `json_each(array)` in the FROM": "unnest json_array_elements jsonb_array_elements jsonb_array_elements_text",
    "write it in the FROM: `FROM t, json_each(t.array) AS e`": "json_each",
    "write `json_array_length(array)`": "array_length cardinality jsonb_array_length",
    "arrays are JSON texts already": "array_to_json",
    "write `json(x)` for a JSON text, or `json_object('key', x)`": "to_json to_jsonb",
    "write `json_object('key', x)`": "row_to_json json_build_object jsonb_build_object",
    "write `x -> '$.a.b'`": "json_extract_path jsonb_extract_path",
    "write `x ->> '$.a.b'`": "json_extract_path_text jsonb_extract_path_text",
    "write `json_keys(x)`": "json_object_keys jsonb_object_keys",
    "write `json_type(x)`": "json_typeof jsonb_typeof",
    "write `typeof(x)`": "pg_typeof",
    "write `hex(x)` or `base64(x)`": "encode",
    _KEEP: "decode",
    "a rule cannot load code": "load_extension",
}
"""What to write for functions of other databases."""


def unknown_function(name: str, known: Iterable[str], node: exp.Expr) -> RuleError:
    """The error for an unknown function, with a replacement."""
    for why, instead, refused in _REFUSED:
        if name in refused.split():
            return wrong_call(f"`{name}` {why}", node, instead)
    names = sorted(known)
    written = next((hint for hint, others in _INSTEAD.items() if name in others.split()), "")
    hint = written or did_you_mean(name, names) or f"the functions are {', '.join(names)}"
    return wrong_call(f"unknown function `{name}`", node, hint)


def wrong_call(message: str, node: exp.Expr, hint: str = "", edit: Edit | None = None) -> RuleError:
    """The error for a call of a function that is not there, or that takes other arguments."""
    return error_at(RuleCode.UNKNOWN_FUNCTION, message, node, hint, edit=edit)
