"""Comparisons with the current time: what they give, until when, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_rules.compiler.compile import compile_config
from headwater_rules.describe.wording import row_words
from headwater_rules.errors import RuleCode, SyncConfigError
from headwater_rules.evaluate.clock import DAY, Clock, Interval, later, moment, shifted
from headwater_rules.evaluate.rows import TableProgram
from headwater_rules.plan import SyncPlan, Value
from headwater_rules.schema import SourceSchema
from tests.unit.rules.rules_store import bound, place_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = DAY // 24


def us(text: str) -> int:
    """Microseconds since 1970 of a time in UTC."""
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def config(where: str) -> str:
    return (
        "config: {edition: 3}\nstreams:\n  s:\n    auto_subscribe: true\n    queries:\n"
        f"      - |\n        SELECT id FROM t WHERE {where}\n"
    )


def plan_of(where: str) -> SyncPlan:
    return compile_config(config(where)).plan


def program_of(where: str) -> TableProgram:
    return bound(plan_of(where), "t", ["id", "a", "b"])


def answer(program: TableProgram, now: int, a: Value, b: Value = None) -> tuple[bool, int | None]:
    """Whether the row is synced, and until when."""
    result = program.at(now).evaluate(("1", a, b), "1")
    assert result.errors == []
    return bool(result.puts), result.flip


@pytest.mark.parametrize(
    ("where", "a", "now", "passes", "until"),
    [
        ("a > now() - interval '7 days'", "2024-01-01T00:00:00Z", "2024-01-07T23:59:59.999999", True, "2024-01-08"),
        ("a > now() - interval '7 days'", "2024-01-01T00:00:00Z", "2024-01-08", False, None),
        ("a >= now() - interval '7 days'", "2024-01-01T00:00:00Z", "2024-01-08", True, "2024-01-08 00:00:00.000001"),
        ("now() < a + interval '1 hour'", "2024-01-01 10:00:00", "2024-01-01 10:30", True, "2024-01-01 11:00"),
        ("a <= now()", "2024-01-01T10:00:00Z", "2023-12-31", False, "2024-01-01 10:00"),
        ("a <= now()", "2024-01-01T10:00:00Z", "2024-01-01 10:00", True, None),
        ("a < now()", "2024-01-01T10:00:00Z", "2024-01-01 10:00", False, "2024-01-01 10:00:00.000001"),
        ("a >= current_date", "2024-01-01", "2024-01-01 23:59", True, "2024-01-02"),
        ("a > current_date", "2024-01-02", "2024-01-01 23:59", True, "2024-01-02"),
        ("a >= current_date - 7", "2024-01-01", "2024-01-08 12:00", True, "2024-01-09"),
        ("a > now()::date", "2024-01-01T06:00:00Z", "2024-01-01 12:00", True, "2024-01-02"),
        ("a > now() - interval '1 month'", "2024-02-29T12:00:00Z", "2024-03-28", True, "2024-03-29 12:00"),
        ("a BETWEEN now() - interval '1 day' AND now()", "2024-01-02", "2024-01-01", False, "2024-01-02"),
        ("a BETWEEN current_date AND now()", "2024-01-02", "2024-01-02", True, "2024-01-03"),
        ("a > now()", "9999-12-31T23:59:59Z", "2024-01-01", True, "9999-12-31 23:59:59"),  # infinity
        ("a > now()", "0000-01-01T00:00:00Z", "2024-01-01", False, None),  # minus infinity
        ("a > now()", "2024-01-01T10:00:00+02:00", "2024-01-01 07:00", True, "2024-01-01 08:00"),
        ("a > now()", None, "2024-01-01", False, None),
        ("a > now()", "soon", "2024-01-01", False, None),
        ("a > now()", 5, "2024-01-01", False, None),
        ("a > now()", "2023-02-29", "2023-01-01", False, None),
    ],
)  # fmt: skip
def test_a_row_is_synced_until_the_comparison_changes(
    where: str, a: Value, now: str, passes: bool, until: str | None
) -> None:
    assert answer(program_of(where), us(now), a) == (passes, None if until is None else us(until))


def test_a_month_that_is_shorter_can_bring_a_row_back() -> None:
    program = program_of("a > now() - interval '1 month'")  # a month before 29, 30 and 31 March is 28 February
    row = "2023-02-28T12:00:00Z"
    flips = []
    now = us("2023-03-28")
    while (flip := answer(program, now, row)[1]) is not None:
        now = flip
        flips.append((now, answer(program, now, row)[0]))
    expected = [(f"2023-03-{day} {hour}:00", hour == "00") for day in (28, 29, 30, 31) for hour in ("00", "12")][1:]
    assert flips == [(us(time), passes) for time, passes in expected]


def test_other_conditions_of_the_row_count_too() -> None:
    program = program_of("b = 'open' AND a > now() OR b = 'kept'")
    assert answer(program, 0, "1970-01-02", "open") == (True, DAY)
    assert answer(program, DAY, "1970-01-02", "open") == (False, None)
    assert answer(program, 0, "1970-01-02", "closed") == (False, None)  # no need to come back
    assert answer(program, 2 * DAY, "1970-01-02", "kept")[0] is True


def test_of_several_windows_the_first_to_change_counts() -> None:
    program = program_of("a > now() AND b > now() - interval '1 day'")
    assert answer(program, 0, "1970-01-03", "1970-01-01") == (True, DAY)
    assert answer(program, 0, "1970-01-02 12:00", "1970-01-02") == (True, 3 * DAY // 2)
    assert answer(program, DAY, "1970-01-03", "1970-01-01") == (False, None)


def test_a_window_whose_change_does_not_matter_is_passed_over() -> None:
    program = program_of("a > now() OR b > now() - interval '1 day'")
    assert answer(program, 0, "1970-01-03", "1970-01-01") == (True, 2 * DAY)
    assert answer(program, 2 * DAY, "1970-01-03", "1970-01-01") == (False, None)


def test_rules_without_time_need_none() -> None:
    program = program_of("a = 1")
    assert not program.has_clock
    assert program.at(0) is program
    assert program.evaluate(("1", 1, None), "1").flip is None


def test_without_a_time_a_row_is_left_out_and_reported() -> None:
    program = program_of("a > now()")
    assert program.has_clock
    result = program.evaluate(("1", "2024-01-01", None), "1")
    assert result.puts == []
    assert "is evaluated without one" in result.errors[0]


def test_a_flip_of_one_row_is_not_taken_for_the_next_one() -> None:
    program = program_of("a > now()")
    assert answer(program, 0, "1970-01-02") == (True, DAY)
    assert answer(program, 0, None) == (False, None)


# property: what is computed from one cell equals trying all times

MOMENTS = st.integers(us("2023-12-20"), us("2024-04-10")).map(lambda time: time // (HOUR // 2) * (HOUR // 2))
INTERVALS = st.builds(
    Interval, st.integers(-14, 14), st.integers(-3, 3), st.sampled_from([0, HOUR, -5 * HOUR, 30 * HOUR])
)


@settings(max_examples=150)
@given(MOMENTS, MOMENTS, INTERVALS, INTERVALS, st.booleans(), st.booleans())
def test_the_next_change_is_the_least_time_at_which_the_comparison_differs(
    value: int, now: int, of_value: Interval, of_clock: Interval, by_day: bool, or_equal: bool
) -> None:
    clock = Clock(by_day, of_clock)
    value = shifted(value, Interval(-of_clock.months, -of_clock.days)) if of_clock.months else value

    def expected(time: int) -> bool:
        base = time // DAY * DAY if by_day else time
        left, right = shifted(value, of_value), shifted(base, of_clock)
        return left >= right if or_equal else left > right

    holds, flip = later(shifted(value, of_value), clock, now, or_equal=or_equal)
    assert holds is expected(now)
    times = range(now + 1, now + 500 * DAY, HOUR // 2) if flip is None else range(now, flip, HOUR // 2)
    assert all(expected(time) is holds for time in times)
    if flip is not None:
        assert flip > now
        assert expected(flip) is not holds
        assert expected(flip - 1) is holds


@given(st.datetimes())
def test_points_in_time_are_read_as_by_the_calendar(time: datetime) -> None:
    assert moment(time.isoformat()) == us(time.isoformat())
    assert moment(time.isoformat() + "Z") == us(time.isoformat())
    assert moment(f"{time:%H:%M}") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12345-06-01", (12345 - 1970) * 365.2425),
        ("0044-03-15 BC", (-43 - 1970) * 365.2425),
    ],
)
def test_years_beyond_four_digits_and_before_christ_are_read(text: str, expected: float) -> None:
    assert abs((moment(text) or 0) / DAY - expected) < 366


@pytest.mark.parametrize(
    ("point", "interval", "expected"),
    [
        ("2024-01-31 10:00", Interval(months=1), "2024-02-29 10:00"),
        ("2023-03-31", Interval(months=-1), "2023-02-28"),
        ("2024-02-29", Interval(months=-12), "2023-02-28"),
        ("2024-01-31", Interval(months=1, days=1), "2024-03-01"),  # months before days
        ("2024-12-31 23:00", Interval(micros=2 * HOUR), "2025-01-01 01:00"),
        ("2024-03-31", Interval(days=1), "2024-04-01"),  # where other zones change their clocks
    ],
)
def test_intervals_are_added_as_in_postgres(point: str, interval: Interval, expected: str) -> None:
    assert shifted(us(point), interval) == us(expected)


# the language


@pytest.mark.parametrize(
    ("written", "months", "days", "micros"),
    [
        ("interval '7 days'", 0, 7, 0),
        ("interval '7' day", 0, 7, 0),
        ("'7 days'::interval", 0, 7, 0),
        ("interval '1 year 2 mons 3 weeks'", 14, 21, 0),
        ("interval '1 day 02:30'", 0, 1, 9_000_000_000),
        ("interval '-1 day -00:00:01.5'", 0, -1, -1_500_000),
        ("interval '90 minutes'", 0, 0, 5_400_000_000),
        ("interval '1 HOUR'", 0, 0, HOUR),
        ("interval '36:00'", 0, 0, 36 * HOUR),
        ("interval '1 week 1 day 1 hr 1 s 1 ms 1 us'", 0, 8, HOUR + 1_001_001),
        ("interval '2 hrs 3 mins'", 0, 0, 2 * HOUR + 180_000_000),
        ("interval '01:00:60'", 0, 0, HOUR + 60_000_000),
    ],
)
def test_intervals_are_read_as_by_postgres(written: str, months: int, days: int, micros: int) -> None:
    (test,) = plan_of(f"a > now() + {written}").buckets[0].sources[0].filters
    assert f"'> now', 0, 0, 0, {months}, {days}, {micros})" in test.sql


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("a = now()", "can't stand here"),
        ("a <> current_timestamp", "can't stand here"),
        ("a IN (1, now())", "can't stand here"),
        ("now() > current_date", "can't stand here"),
        ("date(a) = current_date", "can't stand here"),
        ("a > date(now())", "can't stand here"),
        ("a > now() * 2", "can't stand here"),
        ("a > 3 - now()", "only an interval can be added"),
        ("a > now() - 7", "only an interval can be added"),
        ("a > now() - b", "only an interval can be added"),
        ("a > current_date - 1.5", "whole number of days"),
        ("a > now() - interval '1 day' - interval '1 hour'", "only one interval"),
        ("lower(a) > now()", "only with a column"),
        ("'2024-01-01' > now()", "only with a column"),
        ("row_id() > now()", "only with a column"),
        ("auth.parameter('since') > now()", "only with a column"),
        ("a > now() - interval '1 day ago'", "'1 day ago' is not supported"),
        ("a > now() - interval '1.5 days'", "'1.5 days' is not supported"),
        ("a > now() - interval '1-2'", "'1-2' is not supported"),
        ("a > now() - interval '1 fortnight'", "'1 fortnight' is not supported"),
        ("a > now() - interval '7'", "'7' is not supported"),
        ("a > now() - interval '1 ss'", "'1 ss' is not supported"),
        ("a > now() - interval '00:99'", "'00:99' is not supported"),
        ("a > now() - interval '1 day 1 day'", "'1 day 1 day' has a unit twice"),
        ("a > now() - interval '1 hour 03:30'", "'1 hour 03:30' has a unit twice"),
        ("a > now() - interval '1 ms 1:00'", "has a unit twice"),
        ("now() - a < interval '7 days'", "an interval can't stand alone"),
        ("a > now() - interval ''", "empty"),
        ("a > now() - interval '20000 years'", "longer than 10,000 years"),
        ("(a > now()) = auth.parameter('x')", "which rows of the synced table"),
        ("a > clock_timestamp()", "is not allowed"),
        ("a > localtimestamp", "is not allowed"),
    ],
)
def test_refused_with_the_reason(where: str, names: str) -> None:
    with pytest.raises(SyncConfigError) as caught:
        compile_config(config(where))
    assert names in str(caught.value)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, a > now() AS fresh FROM t",
        "SELECT t.id FROM t, m WHERE t.a = m.a AND m.owner = auth.user_id() AND m.b > now()",
        "SELECT id FROM t WHERE a IN (SELECT a FROM m WHERE m.owner = auth.user_id() AND m.b > now())",
        "SELECT id FROM t, json_each(iif(a > now(), b, '[]')) AS e WHERE e.value = auth.user_id()",
    ],
)
def test_only_rows_of_the_synced_table_are_decided_about(query: str) -> None:
    with pytest.raises(SyncConfigError) as caught:
        compile_config(config("").replace("SELECT id FROM t WHERE ", query))
    assert [str(error.message) for error in caught.value.findings] == [
        "a comparison with the current time can only decide which rows of the synced table are synced"
    ]


@pytest.mark.parametrize(
    ("kind", "is_moment"),
    [
        ("timestamp with time zone", True),
        ("timestamp(3) without time zone", True),
        ("date", True),
        ("text", True),
        ("time without time zone", False),
        ("interval", False),
        ("bigint", False),
        ("jsonb", False),
        ("timestamp with time zone[]", False),
    ],
)
def test_a_column_without_points_in_time_is_reported(kind: str, is_moment: bool) -> None:
    schema = SourceSchema.from_json(
        f'{{"format": 1, "tables": [{{"name": "t", "columns": {{"id": "uuid", "at": "{kind}"}}}}]}}'
    )
    found = compile_config(config("at > now()"), schema=schema).warnings
    expected = [] if is_moment else [(RuleCode.NEVER_EQUAL, "at > now()")]
    assert [(each.code, place_of(each).text) for each in found] == expected


def bucket_definition(parameters: str, data: str) -> str:
    return f"bucket_definitions:\n  s:\n    parameters: {parameters}\n    data: [{data}]\n"


def test_data_queries_may_read_the_clock() -> None:
    users = "SELECT request.user_id() AS u"
    text = bucket_definition(users, "SELECT id FROM t WHERE t.owner = bucket.u AND t.at > now() - interval '1 day'")
    program = bound(compile_config(text).plan, "t", ["id", "owner", "at"])
    result = program.at(0).evaluate(("1", "u1", "1970-01-01"), "1")
    assert ([put.bucket.partition("[")[2] for put in result.puts], result.flip) == (['"u1"]'], DAY)


def test_parameter_queries_may_not() -> None:
    members = "SELECT list AS l FROM members WHERE who = request.user_id() AND until > now()"
    with pytest.raises(SyncConfigError) as caught:
        compile_config(bucket_definition(members, "SELECT id FROM t WHERE list = bucket.l"))
    assert "can only decide which rows of the synced table are synced" in str(caught.value)


@pytest.mark.parametrize(
    "where",
    [
        "a > now() - interval '7 days'",
        "a + interval '1 month 2 days 03:00:00' >= current_date",
        "NOT (a > now())",
        "b = 1",
    ],
)
def test_conditions_are_shown_as_they_are_written(where: str) -> None:
    (test,) = plan_of(where).buckets[0].sources[0].filters
    shown = row_words(test).replace("INTERVAL", "interval")
    assert shown.replace("(", "").replace(")", "") == where.replace("(", "").replace(")", "")


def _filters(*wheres: str) -> Sequence[str]:
    return [plan_of(where).buckets[0].name for where in wheres]


def test_another_window_is_another_bucket_and_another_spelling_is_not() -> None:
    week, days, hours, mirrored = _filters(
        "a > now() - interval '1 week'", "a > now() - interval '7 days'", "a > now() - interval '168:00'",
        "now() - interval '7' day < a",
    )  # fmt: skip
    assert week == days == mirrored
    assert week != hours
