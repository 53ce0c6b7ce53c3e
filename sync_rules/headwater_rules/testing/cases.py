"""Named cases in a YAML file: rows of the source, a user, and what the user's device gets of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from headwater_rules.errors import Report, RuleCode, RuleError, StoppedError, SyncConfigError
from headwater_rules.plan import SyncPlan
from headwater_rules.testing.rules_test import RulesTest
from headwater_rules.text.document import Mapping as YamlMapping
from headwater_rules.text.document import YamlItem, load

_FORM = "write `rules: sync.yaml`, `rows:` and `cases:`"
_FILE_KEYS = ("rules", "now", "rows", "cases")
_CASE_KEYS = ("user", "parameters", "subscriptions", "now", "rows", "gets")


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Rows of one table as written."""

    table: str
    rows: tuple[Mapping[str, object], ...]
    item: YamlItem


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `user` is an id or the claims of a token, `now` the time that rules see, `gets` has the ids or rows
    that the device has, by table: a table that is not in it has none."""

    name: str
    user: str | int | Mapping[str, object]
    parameters: Mapping[str, object] | None
    subscriptions: Sequence[str] | Mapping[str, Mapping[str, object] | Sequence[Mapping[str, object]]]
    now: datetime | None
    rows: tuple[GivenRows, ...]
    gets: Mapping[str, tuple[object, ...]]
    item: YamlItem


@dataclass(frozen=True, slots=True)
class Cases:
    """The cases of a file, the rows that all of them have, and the path of the sync config, as written."""

    rules: str
    rows: tuple[GivenRows, ...]
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is wrong in a case, in lines for people: nothing if it passes."""

    case: str
    problems: tuple[str, ...]


def read_cases(text: str) -> Cases:
    """The cases in the text of a file. Raises SyncConfigError with all that is wrong in it, and where."""
    report = Report()
    if not text.strip():
        raise SyncConfigError([RuleError(RuleCode.STRUCTURE, "the file of cases is empty", suggestion=_FORM)])
    try:
        document = load(text, report).mapping("the file of cases")
        document.check(_FILE_KEYS)
        found = Cases(_path(document), _rows(document.get("rows")), tuple(_cases(document)))
    except RuleError as error:
        raise report.as_errors(error) from None
    except StoppedError:
        raise report.as_errors() from None
    if report.errors:
        raise report.as_errors()
    return found


def run_cases(cases: Cases, plan: SyncPlan) -> Iterable[Outcome]:
    """Run each case with rows of its own. Raises SyncConfigError for rows, streams and tables that the sync config does
    not have, since a case about them says nothing."""
    return (Outcome(case.name, tuple(_problems(cases, case, plan))) for case in cases.cases)


def _problems(cases: Cases, case: Case, plan: SyncPlan) -> Iterable[str]:
    rules = RulesTest(plan)
    if case.now is not None:
        rules.set_time(case.now)
    for given in (*cases.rows, *case.rows):
        try:
            rules.insert(given.table, *given.rows)
        except (TypeError, ValueError) as error:
            raise SyncConfigError([given.item.fail(str(error))]) from None
    try:
        client = rules.client(case.user, parameters=case.parameters, subscriptions=case.subscriptions)
        tables = dict.fromkeys((*case.gets, *client.tables()))
        if not tables:  # of which the first says what failed
            yield from (f"an expression failed: {error}" for error in (*rules.world.errors, *client.errors))
        for table in tables:
            try:
                client.assert_synced(table, case.gets.get(table, ()))
            except AssertionError as error:
                yield str(error)
    except (TypeError, ValueError) as error:
        raise SyncConfigError([case.item.fail(str(error))]) from None


def _path(document: YamlMapping) -> str:
    item = document.get("rules")
    if item is None:
        raise RuleError(RuleCode.STRUCTURE, "the file of cases does not say which sync config it tests",
                        suggestion="write `rules: sync.yaml`, a path from this file")  # fmt: skip
    return item.string("`rules`")


def _cases(document: YamlMapping) -> Iterable[Case]:
    item = document.get("cases")
    cases = None if item is None else item.mapping("`cases`")
    if cases is None or not cases.names():
        raise RuleError(RuleCode.STRUCTURE, "the file has no cases", None if item is None else item.span(),
                        "write them under `cases:`, each below its name")  # fmt: skip
    cases.check()
    now = _time(document.get("now"))
    for name, each in cases.items():
        yield _case(name, cases.key(name), each.mapping(f"case `{name}`"), now)


def _case(name: str, key: YamlItem, case: YamlMapping, now: datetime | None) -> Case:
    case.check(_CASE_KEYS)
    user, gets = case.get("user"), case.get("gets")
    if user is None or gets is None:
        hint = "write `user:` with an id or with claims, and `gets:` with the rows by table (`gets: {}` for none)"
        raise key.fail(f"case `{name}` needs `user` and `gets`", hint)
    who = _value(user)
    if isinstance(who, bool) or not isinstance(who, str | int | Mapping):
        raise user.fail("`user` must be an id, or a mapping of claims")
    parameters = case.get("parameters")
    return Case(
        name=name,
        user=who,
        parameters=None if parameters is None else _mapping(parameters, "`parameters`"),
        subscriptions=_subscriptions(case.get("subscriptions")),
        now=_time(case.get("now")) or now,
        rows=_rows(case.get("rows")),
        gets={
            table: tuple(_row_or_id(row) for row in rows.sequence(f"the rows of `{table}`"))
            for table, rows in gets.mapping("`gets`").items()
        },
        item=key,
    )


def _rows(item: YamlItem | None) -> tuple[GivenRows, ...]:
    if item is None:
        return ()
    tables = item.mapping("`rows`")
    tables.check()
    return tuple(
        GivenRows(table, tuple(_mapping(row, f"a row of `{table}`") for row in rows.sequence(f"`{table}`")), rows)
        for table, rows in tables.items()
    )


def _row_or_id(item: YamlItem) -> object:
    value = _value(item)
    if value is None or isinstance(value, list):
        raise item.fail("an expected row must be its id, or a mapping of its values")
    return value


def _subscriptions(
    item: YamlItem | None,
) -> Sequence[str] | Mapping[str, Mapping[str, object] | Sequence[Mapping[str, object]]]:
    if item is None:
        return ()
    if item.is_sequence:
        return [stream.string("a stream") for stream in item.sequence("`subscriptions`")]
    if not isinstance(_value(item), Mapping):
        raise item.fail("subscriptions are a list of names, or a mapping from names to parameters")
    streams = item.mapping("`subscriptions`")
    streams.check()
    return {name: _subscribed(name, each) for name, each in streams.items()}


def _subscribed(stream: str, item: YamlItem) -> Mapping[str, object] | Sequence[Mapping[str, object]]:
    """The parameters of one subscription, or of several."""
    what = f"the parameters of `{stream}`"
    return [_mapping(each, what) for each in item.sequence(what)] if item.is_sequence else _mapping(item, what)


def _time(item: YamlItem | None) -> datetime | None:
    if item is None:
        return None
    value = _value(item)
    if isinstance(value, datetime):
        return value
    if not isinstance(value, date):
        raise item.fail("`now` must be a time", "write it without quotes: `now: 2026-03-01T12:00:00Z`")
    return datetime.combine(value, time(), UTC)


def _mapping(item: YamlItem, what: str) -> Mapping[str, object]:
    item.mapping(what).check()
    value = _value(item)
    assert isinstance(value, Mapping)  # it has been read as one
    return value


def _value(item: YamlItem) -> object:
    """A YAML value as Python's: texts, numbers, booleans, times, null, lists and mappings."""
    try:
        value: object = YAML(typ="safe", pure=True).constructor.construct_object(item.node, deep=True)
    except (YAMLError, ValueError) as error:
        said = getattr(error, "problem", None) or str(error)
        raise item.fail(
            f"this value can't be read: {said}", "write a text, in quotes if it is none by itself"
        ) from None
    return value


def config_path(cases: Cases, file: Path) -> Path:
    """The path of the sync config that the cases in `file` test."""
    return file.parent / cases.rules
