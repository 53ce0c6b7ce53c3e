"""Comparisons of a column with the current time, the only place where rules may name it.

`column ± interval > now() ± interval` changes at times that can be computed from one value of the row, so a row can be
evaluated again just when that is due. With the time anywhere else, all rows would have to be evaluated all the time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from sqlglot import exp

from headwater_rules.compiler.fragment import REQUEST, ExprKind, Frag, Ref, build
from headwater_rules.compiler.relations import ExpandedArray, TableRef
from headwater_rules.errors import RuleCode, RuleError
from headwater_rules.evaluate.clock import Clock, Interval
from headwater_rules.plan import NOW
from headwater_rules.text.sqltext import error_at, unsupported

_NOW: Final = frozenset({"now", "current_timestamp", "transaction_timestamp"})
_TODAY: Final = "current_date"
_FORM: Final = "compare a column with it in the WHERE: `column > now() - interval '7 days'`"
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}

_SECOND: Final = 1_000_000
_UNITS: Final[Mapping[str, Interval]] = {
    **dict.fromkeys(("microsecond", "us"), Interval(micros=1)),
    **dict.fromkeys(("millisecond", "ms"), Interval(micros=1_000)),
    **dict.fromkeys(("second", "sec", "s"), Interval(micros=_SECOND)),
    **dict.fromkeys(("minute", "min", "m"), Interval(micros=60 * _SECOND)),
    **dict.fromkeys(("hour", "hr", "h"), Interval(micros=3_600 * _SECOND)),
    **dict.fromkeys(("day", "d"), Interval(days=1)),
    **dict.fromkeys(("week", "w"), Interval(days=7)),
    **dict.fromkeys(("month", "mon"), Interval(months=1)),
    **dict.fromkeys(("year", "yr", "y"), Interval(months=12)),
}
_TIMES: Final = frozenset(unit for unit in _UNITS.values() if unit.micros)
"""The units that a time `hh:mm` has, besides its parts."""
_WITHOUT_PLURAL: Final = frozenset({"us", "ms", "s", "m", "h", "d", "w", "y"})
_PART: Final = re.compile(
    r"\s*(?:([+-]?)(\d{1,8}):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?|([+-]?\d{1,7})\s*([a-z]+))(?!\S)", re.ASCII
)
_LONGEST: Final = 10_000  # years


def names_time(node: exp.Expr) -> bool:
    """Whether an expression is the current time or date."""
    return _by_day(node) is not None


def reads_time(node: exp.Expr) -> bool:
    """Whether an expression contains the current time or date."""
    return any(names_time(part) for part in node.walk())


def misplaced(node: exp.Expr) -> RuleError:
    """The error for the current time where it can't stand."""
    return unsupported("the current time can't stand here: a row would change at times that are not known", node, _FORM)


def elsewhere(node: exp.Expr) -> RuleError:
    """The error for a comparison with the current time that decides about anything but the rows of the synced table."""
    message = "a comparison with the current time can only decide which rows of the synced table are synced"
    return unsupported(message, node, "make it a condition of the WHERE, on a column of the selected table")


def moving(value: Frag) -> bool:
    """Whether a value depends on the time."""
    return any(isinstance(part, Ref) and part.column == NOW for part in value.parts)


def column_of(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """The node of the column in a comparison of which a side reads the time. Raises RuleError for a form whose changes
    are not known."""
    sides = [side for side in (left, right) if not reads_time(side)]
    if len(sides) != 1:
        raise misplaced(left)
    if _is_interval(sides[0].unnest()):
        raise unsupported("an interval can't stand alone in a comparison with the current time", sides[0], _FORM)
    return _without_interval(sides[0])[0]


def comparison(
    left: exp.Expr,
    sign: str,
    right: exp.Expr,
    column: Frag,
    instances: Sequence[TableRef | ExpandedArray],
    node: exp.Expr,
) -> Frag:
    """`left sign right`, of which one side is the time and the other `column`, each with an interval added or not."""
    if reads_time(left):
        left, right, sign = right, left, _MIRRORED[sign]
    ref = column.ref
    of_table = ref is not None and ref.table != REQUEST and isinstance(instances[ref.table], TableRef)
    if ref is None or not of_table or ref.column.startswith("\0"):
        message = "the current time can be compared only with a column of the synced table, and an interval added to it"
        raise unsupported(message, left, _FORM)
    of_column, clock = _without_interval(left)[1], _clock(right)
    form = ">" if sign in {">", "<="} else ">="
    numbers = ", ".join(map(str, (*of_column, *clock.after)))
    test = f", '{form} {'day' if clock.by_day else 'now'}', {numbers})"
    pieces: list[str | Frag] = ["hw_clock(", column, ", ", Frag((Ref(ref.table, NOW),), ExprKind.INTEGER, node), test]
    if sign in {"<", "<="}:
        pieces = ["(NOT ", *pieces, ")"]
    return build(ExprKind.LOGICAL, node, *pieces)


def _by_day(node: exp.Expr) -> bool | None:
    """Whether a node is the current date, or False for the current time; None for anything else."""
    match node:
        case exp.Anonymous() if node.name.lower() in _NOW and not node.expressions:
            return False
        case exp.Column() if not node.table and not node.this.args.get("quoted"):
            name = node.name.lower()
            return True if name == _TODAY else False if name == "current_timestamp" else None
        case exp.Cast() if node.to.this is exp.DType.DATE and _by_day(node.this.unnest()) is False:
            return True
        case _:
            return None


def _clock(node: exp.Expr) -> Clock:
    base = node.unnest()
    added = base.expression.unnest() if isinstance(base, exp.Add | exp.Sub) else None
    if added is not None and _by_day(base.this.unnest()) and isinstance(added, exp.Literal) and not added.is_string:
        return Clock(by_day=True, after=_bounded(Interval(days=_whole(added) * _sign(base)), added))
    base, after = _without_interval(node)
    by_day = _by_day(base)
    if by_day is None:
        raise misplaced(base)
    return Clock(by_day, after)


def _whole(node: exp.Literal) -> int:
    if not node.name.isdecimal() or len(node.name) > 7:
        raise unsupported("a date plus a number needs a whole number of days", node, "write `interval '7 days'`")
    return int(node.name)


def _sign(node: exp.Expr) -> int:
    return 1 if isinstance(node, exp.Add) else -1


def _without_interval(node: exp.Expr) -> tuple[exp.Expr, Interval]:
    """A side of a comparison, and the interval that is added to it."""
    node = node.unnest()
    if not isinstance(node, exp.Add | exp.Sub):
        return node, Interval()
    interval = _interval(node.expression.unnest())
    base = node.this.unnest()
    if isinstance(base, exp.Add | exp.Sub):
        raise unsupported("only one interval can be added to a side", node, "write one: `interval '1 day 2 hours'`")
    return base, interval if isinstance(node, exp.Add) else interval.negated()


def _is_interval(node: exp.Expr) -> bool:
    return isinstance(node, exp.Interval) or (isinstance(node, exp.Cast) and node.to.this is exp.DType.INTERVAL)


def _interval(node: exp.Expr) -> Interval:
    """The value of `interval '7 days'`, `interval '7' day` or `'7 days'::interval`."""
    written = node.this if _is_interval(node) else None
    if not (isinstance(written, exp.Literal) and written.is_string):
        raise unsupported("only an interval can be added here", node, "write `interval '7 days'`")
    unit = node.args.get("unit")
    return _bounded(_read(f"{written.name} {unit.name if unit is not None else ''}".strip().lower(), node), node)


def _read(text: str, node: exp.Expr) -> Interval:
    total, position = Interval(), 0
    read = set[Interval]()
    while position < len(text):
        found = _PART.match(text, position)
        unit = None if found is None else _unit(found)
        if found is None or unit is None:
            hint = "write whole numbers with units, and a time: `interval '1 month 2 days 03:30'`"
            raise unsupported(f"the interval '{text}' is not supported", node, hint)
        parts = {unit} if found[6] else _TIMES
        if parts & read:
            hint = "add the numbers, and write the unit once"
            raise unsupported(f"the interval '{text}' has a unit twice, which Postgres refuses", node, hint)
        read |= parts
        number = int(found[6]) if found[6] else _clock_micros(found)
        total = Interval(*(sum_ + number * of_unit for sum_, of_unit in zip(total, unit, strict=True)))
        position = found.end()
    if not text:
        raise unsupported("the interval is empty", node, "write `interval '7 days'`")
    return total


def _unit(found: re.Match[str]) -> Interval | None:
    """The unit of a part; of a time, the microsecond. None where Postgres knows no such unit or time."""
    if name := found[7]:
        singular = name.removesuffix("s")
        return _UNITS.get(name) or (None if singular in _WITHOUT_PLURAL else _UNITS.get(singular))
    return Interval(micros=1) if int(found[3]) < 60 and int(found[4] or 0) <= 60 else None


def _clock_micros(found: re.Match[str]) -> int:
    """Of `[-]hh:mm[:ss[.ffffff]]`."""
    seconds = (int(found[2]) * 60 + int(found[3])) * 60 + int(found[4] or 0)
    return (seconds * _SECOND + int((found[5] or "").ljust(6, "0"))) * (-1 if found[1] == "-" else 1)


def _bounded(interval: Interval, node: exp.Expr) -> Interval:
    days = abs(interval.months) * 31 + abs(interval.days) + abs(interval.micros) // (86_400 * _SECOND)
    if days > _LONGEST * 365:
        message = f"the interval is longer than {_LONGEST:,} years"
        raise error_at(RuleCode.TOO_MANY, message, node, "leave the condition out")
    return interval
