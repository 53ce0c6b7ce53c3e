"""The date and time functions of SQLite, without any access to the current time or the machine's time zone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from headwater_rules.compiler.expressions.fragment import Frag, Kind, build, text
from headwater_rules.errors import Code, Place, RuleError

FUNCTIONS: Final = {
    "unixepoch": Kind.NUMBER,
    "julianday": Kind.NUMBER,
    "datetime": Kind.TEXT,
    "date": Kind.TEXT,
    "time": Kind.TEXT,
    "strftime": Kind.TEXT,
}
MOST_ARGUMENTS: Final = 10
_CLOCK = r"\d\d:\d\d(?::\d\d(?:\.\d+)?)?"
_MODIFIER: Final = re.compile(
    r"unixepoch|julianday|auto|subsec|subsecond|ceiling|floor|start of (?:year|month|day)|weekday [0-6]"
    r"|[+-]?\d+(?:\.\d+)? +(?:day|hour|minute|second|month|year)s?"
    rf"|[+-]{_CLOCK}|[+-]\d{{4}}-\d\d-\d\d(?: {_CLOCK})?",
    re.ASCII | re.IGNORECASE,
)
_MACHINE_ZONE: Final = frozenset({"localtime", "utc"})


def call(name: str, arguments: Sequence[Frag], nodes: Sequence[exp.Expr], place: Place) -> Frag:
    """The call of one of FUNCTIONS. Raises RuleError for a modifier that SQLite does not know or that depends on the
    machine, and when the point in time is missing, which SQLite would read as the current time."""
    before = 1 if name == "strftime" else 0
    if len(arguments) <= before:
        raise RuleError(
            Code.UNKNOWN_FUNCTION,
            f"`{name}` without a point in time means the current one, but a rule must give the same answer at any time",
            place,
            "write `strftime('%Y-%m-%d', column)`" if before else f"write `{name}(column)`",
        )
    pieces: list[str | Frag] = [f"{name}("]
    if before:
        pieces += [text(arguments[0]), ", "]
    pieces += ["hw_moment(", arguments[before], ")"]
    for node in nodes[before + 1 :]:
        pieces.append(f", '{_modifier(name, node, place)}'")
    return build(FUNCTIONS[name], place, *pieces, ")")


def _modifier(name: str, node: exp.Expr, place: Place) -> str:
    if not (isinstance(node, exp.Literal) and node.is_string):
        raise RuleError(
            Code.UNSUPPORTED, f"a modifier of `{name}` must be a literal", place, "write it in quotes: '+1 day'"
        )
    modifier = str(node.this)
    if modifier.strip().lower() in _MACHINE_ZONE:
        raise RuleError(
            Code.UNSUPPORTED,
            f"the modifier '{modifier}' of `{name}` is not allowed: it depends on the time zone of the machine",
            place,
            "times are UTC; add an offset like '+02:00'",
        )
    if not _MODIFIER.fullmatch(modifier):
        raise RuleError(
            Code.UNSUPPORTED,
            f"unsupported modifier of `{name}`",
            place,
            "use 'unixepoch', 'subsec', '+1 day', '-02:30', 'start of month' or another one of SQLite's",
        )
    return modifier
