"""Comparisons of a row's points in time with the clock: whether one holds at a time, and when that changes next.

Points in time are microseconds since 1970 UTC, as integers, so that any year that Postgres prints fits. Intervals are
added as Postgres adds them: months first, where a day that the month lacks becomes its last one, then days of 24 hours
(UTC has no others), then the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from headwater_rules.errors import EvaluationError
from headwater_rules.plan import Value

DAY: Final = 86_400_000_000
"""Microseconds."""

_MOMENT: Final = re.compile(
    r"(\d{4,6})-(\d\d)-(\d\d)"
    r"(?:[ T](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6})\d*)?)?(?:(Z)|([+-])(\d\d):?(\d\d)?)?)?( BC)?",
    re.ASCII,
)
_MOST_AROUND: Final = 5
"""How many days a month's end may move a day."""


class Interval(NamedTuple):
    """An interval of Postgres, whose parts don't convert into each other."""

    months: int = 0
    days: int = 0
    micros: int = 0

    def negated(self) -> Interval:
        return Interval(-self.months, -self.days, -self.micros)


class Clock(NamedTuple):
    """`now() + after`, or with `by_day` `current_date + after`."""

    by_day: bool
    after: Interval


def interval_words(interval: Interval) -> str:
    """` + interval '1 month 2 days 03:30:00'`, as rules write it; nothing for an empty one."""
    if not any(interval):
        return ""
    minus = all(part <= 0 for part in interval)
    months, days, micros = interval.negated() if minus else interval
    named = [
        f"{number} {unit}{'' if number == 1 else 's'}" for number, unit in ((months, "month"), (days, "day")) if number
    ]
    if micros:
        minutes, rest = divmod(abs(micros), 60_000_000)
        seconds, fraction = divmod(rest, 1_000_000)
        clock = f"{'-' if micros < 0 else ''}{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
        named.append(f"{clock}.{fraction:06}" if fraction else clock)
    return f" {'-' if minus else '+'} interval '{' '.join(named)}'"


def moment(value: Value) -> int | None:
    """The point in time that a value of a rule means: a date its midnight, a time without offset in UTC. None for null
    and what is no point in time."""
    found = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(found[number] or 0) for number in range(1, 7))
    if found[12]:
        year = 1 - year
    if not (1 <= month <= 12 and 1 <= day <= _days_in(year, month) and hour < 24 and minute < 60 and second < 60):
        return None
    offset = (int(found[10] or 0) * 60 + int(found[11] or 0)) * (-1 if found[9] == "-" else 1)
    seconds = (hour * 60 + minute - offset) * 60 + second
    return _day_number(year, month, day) * DAY + seconds * 1_000_000 + int((found[7] or "").ljust(6, "0"))


def shifted(point: int, by: Interval) -> int:
    """A point in time plus an interval."""
    day, clock = divmod(point, DAY)
    return _shifted_day(day, by) * DAY + clock + by.micros


def later(point: int, clock: Clock, now: int, *, or_equal: bool) -> tuple[bool, int | None]:
    """Whether `point > clock` (or with `or_equal` `>=`) at the time `now`, and the least time after `now` at which that
    is otherwise; None when it stays so for ever. It becomes otherwise more than once at most where months are added,
    around the end of one: a month after both 30 January, 23:00, and 31 January, 1:00, is 28 February.
    """
    limit_day, limit_clock = divmod(point + or_equal - clock.after.micros, DAY)

    def holds(time: int) -> bool:
        day, since_midnight = divmod(time, DAY)
        return (_shifted_day(day, clock.after), 0 if clock.by_day else since_midnight) < (limit_day, limit_clock)

    # It can change only at midnight and at one time of the day, and only on days that are shifted to about the limit
    near = _shifted_day(limit_day - clock.after.days, Interval(-clock.after.months))
    around = _MOST_AROUND if clock.after.months else 0
    holds_now = holds(now)
    for day in range(near - around, near + around + 2):
        for time in (day * DAY, day * DAY + (0 if clock.by_day else limit_clock)):
            if time > now and holds(time) is not holds_now:
                return holds_now, time
    return holds_now, None


def compare(arguments: Sequence[Value]) -> tuple[int | None, int | None]:
    """`hw_clock` of compiled rules: `value + interval > clock`, and the time of its next change. The arguments are the
    value, the time, `> now`, `>= now`, `> day` or `>= day`, and the months, days and microseconds of the value's
    interval and of the clock's. Null for a value that is no point in time. Raises EvaluationError without a time."""
    value, now, form, *parts = arguments
    numbers = [part for part in parts if isinstance(part, int)]
    if not isinstance(now, int) or not isinstance(form, str):
        raise EvaluationError(
            "a comparison with the current time is evaluated without one; a test sets it by `set_time`, or by `now:`"
        )
    point = moment(value)
    if point is None:
        return None, None
    clock = Clock(form.endswith("day"), Interval(*numbers[3:]))
    holds, flip = later(shifted(point, Interval(*numbers[:3])), clock, now, or_equal=form.startswith(">="))
    return int(holds), flip


# the calendar, also before year 1 and after 9999


def _shifted_day(day: int, by: Interval) -> int:
    if by.months:
        year, month, of_month = _date_of(day)
        year, month = divmod(year * 12 + month - 1 + by.months, 12)
        day = _day_number(year, month + 1, min(of_month, _days_in(year, month + 1)))
    return day + by.days


def _days_in(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in {4, 6, 9, 11} else 31


# Years begin in March here, so that a leap day is their last one, and 400 of them always have the same number of days

_DAYS_OF_400_YEARS: Final = 146_097
_MARCH_OF_YEAR_0: Final = -719_468


def _day_number(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01."""
    cycle, year = divmod(year - (month <= 2), 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return cycle * _DAYS_OF_400_YEARS + year * 365 + year // 4 - year // 100 + of_year + _MARCH_OF_YEAR_0


def _date_of(number: int) -> tuple[int, int, int]:
    """Year, month and day."""
    cycle, day = divmod(number - _MARCH_OF_YEAR_0, _DAYS_OF_400_YEARS)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= year * 365 + year // 4 - year // 100
    month = (5 * day + 2) // 153
    return cycle * 400 + year + (month >= 10), (month + 2) % 12 + 1, day - (153 * month + 2) // 5 + 1
