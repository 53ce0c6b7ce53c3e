"""Reads the computed tables of a sync config: `tables`. Their queries are for Postgres or Spark, and are not parsed
here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headwater_rules.errors import RuleCode, RuleError
from headwater_rules.plan import ComputedTable, Refresh
from headwater_rules.text.document import TAG, Mapping, YamlItem
from headwater_rules.text.written import read_sql

_KEYS = ("query", "spark", "key", "source", "refresh")
_REFRESH_KEYS = ("every", "after", "least", "timeout")
_READ = "auto"
_DURATION = re.compile(r"([0-9]+)(ms|s|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_LONGEST = 365 * 86_400.0
_TABLE = re.compile(r'(?:("(?:[^"]|"")+"|[^."]+)\.)?("(?:[^"]|"")+"|[^."]+)')
_LONGEST_NAME = 63  # as in Postgres
_OF_SPARK = Refresh(every=300.0, timeout=600.0)


@dataclass(frozen=True, slots=True)
class ComputedSource:
    """A computed table and where it is written."""

    key: YamlItem
    table: ComputedTable


def read_computed(name: str, key: YamlItem, item: YamlItem) -> ComputedSource:
    """A computed table. Raises RuleError where it can't be read; other findings go to the report."""
    what = f"table `{name}`"
    if len(name) > _LONGEST_NAME or "." in name or "%" in name or not name.isprintable():
        raise key.fail(f"`{name}` can't be the name of a table", "use letters, digits and `_`, 63 at most")
    table = item.mapping(what)
    table.check(_KEYS)
    spark = table.get("query") is None and table.get("spark") is not None
    query = table.get("spark" if spark else "query")
    if query is None:
        raise key.fail(f"{what} has no `query`", "add the SELECT that gives its rows")
    if not spark and table.get("spark") is not None:
        raise key.fail(f"{what} has both `query` and `spark`", "keep the one that is to give its rows")
    if table.get("key") is None:
        raise key.fail(f"{what} has no `key`", "list the columns of its key")
    text = read_sql(query, f"the query of {what}").sql.strip().removesuffix(";").rstrip()
    if not text:
        raise query.fail(f"the query of {what} is empty", "add the SELECT that gives its rows", RuleCode.SQL_SYNTAX)
    columns: tuple[str, ...] = table.read("key", _key, ())
    source = table.read("source", lambda each: each.string("`source`"), "default")
    default = _OF_SPARK if spark else Refresh(after_read=True)
    refresh = table.read("refresh", lambda each: _refresh(each, what, default), default)
    if spark and (refresh.every is None or any(refresh.watched)):
        hint = "set `every` under `refresh`, and no `after`"
        raise key.fail(f"{what} is Spark's, which is refreshed by clock and by message alone", hint)
    return ComputedSource(key, ComputedTable(source, name, text, columns, refresh, spark))


def _key(item: YamlItem) -> tuple[str, ...]:
    items = item.sequence("`key`") if item.is_sequence else [item]
    names = tuple(each.string("a column of `key`") for each in items)
    if not names or len(set(names)) != len(names):
        raise item.fail("`key` must name columns, each once", "list the columns that tell the rows apart")
    return names


def _refresh(item: YamlItem, what: str, default: Refresh) -> Refresh:
    read = item.mapping(f"`refresh` of {what}")
    read.check(_REFRESH_KEYS)
    every = read.read("every", lambda each: _seconds(each, "`every`"), None)
    least = read.read("least", lambda each: _seconds(each, "`least`", zero=True), default.least)
    timeout = read.read("timeout", lambda each: _seconds(each, "`timeout`"), default.timeout)
    if every is not None and every < least:
        read.key("every").warn(RuleCode.NO_EFFECT, "`every` is shorter than `least`, which counts", "set `least`, too")
    after, after_read = _after(read)
    if read.get("every") is None and not after and not after_read and not item.report.errors:
        raise item.fail("nothing refreshes this table", "add `every: 5m`, or `after: auto`")
    return Refresh(every, after, after_read, least, timeout)


def _after(read: Mapping) -> tuple[tuple[tuple[str, str], ...], bool]:
    item = read.get("after")
    if item is None:
        return (), False
    if not item.is_sequence:
        if item.string("`after`") != _READ:
            raise item.fail("`after` must be a list of tables, or `auto`", "`auto` means all that the query reads")
        return (), True
    return tuple(dict.fromkeys(map(_table, item.sequence("`after`")))), False


def _table(item: YamlItem) -> tuple[str, str]:
    """Schema and name of a table, which are written as in SQL."""
    written = _TABLE.fullmatch(item.string("a table of `after`"))
    if written is None:
        raise item.fail("this is no name of a table", "write `orders`, or `sales.orders`")
    schema, name = (None if part is None else _identifier(part) for part in written.groups())
    assert name is not None
    return schema or "public", name


def _identifier(written: str) -> str:
    if written.startswith('"'):
        return written[1:-1].replace('""', '"')
    return written.lower()


def _seconds(item: YamlItem, what: str, *, zero: bool = False) -> float:
    """A duration such as `90s`, `5m` or `1h`, or a number of seconds."""
    written = _DURATION.fullmatch(str(item.node.value)) if item.node.tag in {TAG + "str", TAG + "int"} else None
    seconds = float(written[1]) * _UNITS[written[2] or "s"] if written and len(written[1]) < 12 else -1.0
    if seconds < 0 or seconds > _LONGEST or (seconds == 0 and not zero):
        raise _no_duration(item, what)
    return seconds


def _no_duration(item: YamlItem, what: str) -> RuleError:
    return item.fail(f"{what} must be a duration", "write `10s`, `5m` or `1h`", RuleCode.OPTION)
