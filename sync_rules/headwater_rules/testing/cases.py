"""Named cases in a YAML file: rows of the source, a user, and what the user's device gets of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from headwater_rules.errors import Report, RuleCode, RuleError, StoppedError, SyncConfigError
from headwater_rules.plan import SyncPlan
from headwater_rules.testing.rules_test import RulesTest
from headwater_rules.text.document import Mapping as YamlMapping
from headwater_rules.text.document import YamlItem, load

_FORM = "write `rules: sync.yaml`, `rows:` and `cases:`"
_FILE_KEYS = ("rules", "rows", "cases")
_CASE_KEYS = ("user", "parameters", "subscriptions", "rows", "gets")


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Rows of one table as written."""

    table: str
    rows: tuple[Mapping[str, object], ...]
    item: YamlItem


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `user` is an id or the claims of a token, `gets` has the ids or rows that the device has, by table: a
    table that is not in it has none."""

    name: str
    user: str | int | Mapping[str, object]
    parameters: Mapping[str, object] | None
    subscriptions: object
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
    for given in (*cases.rows, *case.rows):
        try:
            rules.insert(given.table, *given.rows)
        except (TypeError, ValueError) as error:
            raise SyncConfigError([given.item.fail(str(error))]) from None
    try:
        client = rules.client(
            case.user,
            parameters=case.parameters,
            subscriptions=case.subscriptions,  # type: ignore[arg-type]  # `client` refuses other forms
        )
        for table in dict.fromkeys((*case.gets, *client.tables())):
            try:
                client.assert_synced(table, case.gets.get(table, ()))
            except AssertionError as error:
                yield str(error)
    except (TypeError, ValueError, AttributeError) as error:
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
    for name, each in cases.items():
        yield _case(name, cases.key(name), each.mapping(f"case `{name}`"))


def _case(name: str, key: YamlItem, case: YamlMapping) -> Case:
    case.check(_CASE_KEYS)
    user, gets = case.get("user"), case.get("gets")
    if user is None or gets is None:
        hint = "write `user:` with an id or with claims, and `gets:` with the rows by table (`gets: {}` for none)"
        raise key.fail(f"case `{name}` needs `user` and `gets`", hint)
    who = _value(user)
    if not isinstance(who, str | int | Mapping):
        raise user.fail("`user` must be an id, or a mapping of claims")
    parameters = case.get("parameters")
    subscriptions = case.get("subscriptions")
    return Case(
        name=name,
        user=who,
        parameters=None if parameters is None else _mapping(parameters, "`parameters`"),
        subscriptions=() if subscriptions is None else _value(subscriptions),
        rows=_rows(case.get("rows")),
        gets={
            table: tuple(_value(row) for row in rows.sequence(f"the rows of `{table}`"))
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


def _mapping(item: YamlItem, what: str) -> Mapping[str, object]:
    item.mapping(what).check()
    value = _value(item)
    assert isinstance(value, Mapping)  # it has been read as one
    return value


def _value(item: YamlItem) -> object:
    """A YAML value as Python's: texts, numbers, booleans, times, null, lists and mappings."""
    value: object = YAML(typ="safe", pure=True).constructor.construct_object(item.node, deep=True)
    return value


def config_path(cases: Cases, file: Path) -> Path:
    """The path of the sync config that the cases in `file` test."""
    return file.parent / cases.rules
