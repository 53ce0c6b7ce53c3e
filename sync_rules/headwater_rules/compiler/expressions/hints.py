"""Error messages for functions that the language does not have. Most such names come from Postgres, MySQL or SQLite,
and have a replacement."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headwater_rules.errors import Code, Place, RuleError, did_you_mean

_MOMENTS: Final = frozenset(
    {
        "now", "clock_timestamp", "statement_timestamp", "transaction_timestamp", "timeofday", "current_timestamp",
        "current_date", "current_time", "localtime", "localtimestamp", "getdate", "sysdate", "curdate", "curtime",
        "utc_timestamp", "unix_timestamp",
    }
)  # fmt: skip
_CHANGING: Final = frozenset(
    {
        "random", "rand", "randomblob", "setseed", "uuid", "newid", "gen_random_uuid", "uuid_generate_v1",
        "uuid_generate_v4", "uuidv4", "uuidv7", "nextval", "currval", "lastval", "txid_current", "pg_current_xact_id",
        "last_insert_rowid", "changes", "total_changes", "version", "sqlite_version", "current_user", "session_user",
        "current_setting",
    }
)  # fmt: skip
_AGGREGATES: Final = frozenset(
    {
        "count", "sum", "avg", "total", "array_agg", "string_agg", "group_concat", "json_agg", "jsonb_agg",
        "json_object_agg", "jsonb_object_agg", "json_group_array", "json_group_object", "jsonb_group_array",
        "jsonb_group_object", "bool_and", "bool_or", "every", "stddev", "variance", "median", "percentile",
        "percentile_cont", "percentile_disc", "mode",
    }
)  # fmt: skip
_WINDOWS: Final = frozenset(
    {
        "row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead", "first_value",
        "last_value", "nth_value",
    }
)  # fmt: skip
_INEXACT: Final = frozenset(
    {
        "sqrt", "cbrt", "pow", "power", "exp", "ln", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos",
        "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "degrees", "radians", "pi",
    }
)  # fmt: skip
_INSTEAD: Final = {
    "char_length": "write `length(x)`",
    "character_length": "write `length(x)`",
    "octet_length": "write `length(x::blob)`",
    "strpos": "write `instr(x, part)`",
    "position": "write `instr(x, part)`",
    "charindex": "write `instr(x, part)`",
    "left": "write `substring(x, 1, n)`",
    "right": "write `substring(x, -n)`",
    "mid": "write `substring(x, start, n)`",
    "btrim": "write `trim(x, characters)`",
    "split_part": "use `instr` and `substring`",
    "starts_with": "write `substring(x, 1, n) = 'start'`",
    "like": "write `x LIKE pattern`",
    "glob": "write `x LIKE pattern`",
    "regexp_match": "regular expressions are not supported, use `instr` or `LIKE`",
    "regexp_replace": "regular expressions are not supported, use `replace`",
    "printf": "join the parts with `||`",
    "format": "join the parts with `||`",
    "to_char": "write `strftime('%Y-%m-%d', x)` for a time, `x::text` for a number",
    "to_number": "write `x::numeric`",
    "to_date": "write `date(x)`",
    "to_timestamp": "write `datetime(x, 'unixepoch')`",
    "date_trunc": "write `date(x)`, or `datetime(x, 'start of month')`",
    "date_part": "write `strftime('%Y', x)::integer`",
    "extract": "write `unixepoch(x)`, or `strftime('%Y', x)::integer`",
    "age": "subtract two `unixepoch(x)` or `julianday(x)`",
    "datediff": "subtract two `julianday(x)`",
    "timediff": "subtract two `unixepoch(x)`",
    "greatest": "write `max(a, b)`, which is null if one of them is",
    "least": "write `min(a, b)`, which is null if one of them is",
    "if": "write `iif(condition, a, b)`",
    "nvl": "write `ifnull(a, b)`",
    "isnull": "write `x IS NULL`, or `ifnull(a, b)`",
    "mod": "write `a % b`",
    "div": "write `a / b`: dividing integers truncates",
    "any": "write `x IN array`",
    "some": "write `x IN array`",
    "all": "write `NOT` and `x IN array`",
    "row": "write `x IN (a, b)` or `json_array(a, b)`",
    "array": "write `json_array(a, b)`",
    "unnest": "write `json_each(array)` in the FROM",
    "json_each": "write it in the FROM: `FROM t, json_each(t.array) AS e`",
    "json_array_elements": "write `json_each(array)` in the FROM",
    "jsonb_array_elements": "write `json_each(array)` in the FROM",
    "jsonb_array_elements_text": "write `json_each(array)` in the FROM",
    "array_length": "write `json_array_length(array)`",
    "cardinality": "write `json_array_length(array)`",
    "jsonb_array_length": "write `json_array_length(array)`",
    "array_position": "write `x IN array`",
    "array_to_json": "arrays are JSON texts already",
    "to_json": "write `json(x)` for a JSON text, or `json_object('key', x)`",
    "to_jsonb": "write `json(x)` for a JSON text, or `json_object('key', x)`",
    "row_to_json": "write `json_object('key', x)`",
    "json_build_object": "write `json_object('key', x)`",
    "jsonb_build_object": "write `json_object('key', x)`",
    "json_build_array": "write `json_array(a, b)`",
    "jsonb_build_array": "write `json_array(a, b)`",
    "json_extract_path": "write `x -> '$.a.b'`",
    "json_extract_path_text": "write `x ->> '$.a.b'`",
    "jsonb_extract_path": "write `x -> '$.a.b'`",
    "jsonb_extract_path_text": "write `x ->> '$.a.b'`",
    "json_object_keys": "write `json_keys(x)`",
    "jsonb_object_keys": "write `json_keys(x)`",
    "json_typeof": "write `json_type(x)`",
    "jsonb_typeof": "write `json_type(x)`",
    "pg_typeof": "write `typeof(x)`",
    "encode": "write `hex(x)` or `base64(x)`",
    "decode": "keep the value in a column of the row",
    "load_extension": "a rule cannot load code",
}
_ONE_ROW: Final = "a rule sees one row at a time: compute the value in Postgres, or in the device's own query"


def unknown_function(name: str, known: Iterable[str], place: Place) -> RuleError:
    """The error for an unknown function, with a replacement."""
    if name in _MOMENTS or name in _CHANGING:
        message = f"`{name}` is not allowed: a rule must give the same answer whenever it is evaluated"
        hint = "compare times on the device, or keep the value in a column of the row"
        return RuleError(
            Code.UNKNOWN_FUNCTION,
            message,
            place,
            hint if name in _MOMENTS else "keep the value in a column of the row",
        )
    if name in _AGGREGATES:
        return RuleError(Code.UNKNOWN_FUNCTION, f"`{name}` is an aggregate and not supported", place, _ONE_ROW)
    if name in _WINDOWS:
        return RuleError(Code.UNKNOWN_FUNCTION, f"`{name}` is a window function and not supported", place, _ONE_ROW)
    if name in _INEXACT:
        message = f"`{name}` is not supported: its last digits depend on the machine"
        return RuleError(Code.UNKNOWN_FUNCTION, message, place, "compute the value in Postgres, or on the device")
    names = sorted(known)
    hint = _INSTEAD.get(name) or did_you_mean(name, names) or f"the functions are {', '.join(names)}"
    return RuleError(Code.UNKNOWN_FUNCTION, f"unknown function `{name}`", place, hint)


def single_extreme(name: str, place: Place) -> RuleError:
    """The error for `max(x)`, which is an aggregate elsewhere."""
    message = f"`{name}` of one argument is an aggregate and not supported"
    return RuleError(Code.UNKNOWN_FUNCTION, message, place, f"give it two or more arguments; {_ONE_ROW}")
