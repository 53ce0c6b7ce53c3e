"""Reads everything in a sync config except SQL: options, streams, bucket definitions and their settings."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from typing import TypeVar

from headwater_rules.errors import Code, Place, Report, RuleError, Severity
from headwater_rules.text.document import Item, Mapping
from headwater_rules.text.options import Options, check_place, flag, read_options
from headwater_rules.text.sqltext import SqlText

_CUSTOM_WRITE_CHECKPOINTS = frozenset({"write_checkpoints", "checkpoint_requests"})
"""Events that devices would wait for: to ignore them would keep their own writes from them for ever."""

_ROOT_KEYS = ("config", "streams", "with", "bucket_definitions", "event_definitions")
_STREAM_KEYS = ("query", "queries", "with", "auto_subscribe", "priority", "accept_potentially_dangerous_queries")
_BUCKET_KEYS = ("parameters", "data", "priority", "accept_potentially_dangerous_queries")
_DEFAULT_PRIORITY = 3
_NOTHING = "the sync config defines no streams"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamSource:
    """A stream as written. `ctes` are all that it may use, `own_ctes` the names of those defined in it."""

    name: str
    place: Place
    queries: tuple[SqlText, ...]
    ctes: MappingType[str, SqlText]
    own_ctes: tuple[str, ...]
    auto_subscribe: bool
    priority: int
    accepts_dangerous: bool


@dataclass(frozen=True, slots=True)
class BucketSource:
    """A bucket definition as written. `own_priority` is the place of its priority, if it sets one."""

    name: str
    place: Place
    parameters: tuple[SqlText, ...]
    data: tuple[SqlText, ...]
    priority: int
    own_priority: Place | None
    accepts_dangerous: bool


@dataclass(frozen=True, slots=True)
class EventSource:
    """An event definition as written."""

    name: str
    place: Place
    payloads: tuple[SqlText, ...]


@dataclass(frozen=True, slots=True)
class Config:
    """A sync config whose SQL is not parsed yet. `shared_ctes` are those for all streams."""

    options: Options
    streams: tuple[StreamSource, ...]
    buckets: tuple[BucketSource, ...]
    events: tuple[EventSource, ...]
    shared_ctes: MappingType[str, SqlText]


def read_config(root: Item, report: Report) -> Config:
    """Read everything except SQL. Findings go to `report`; raises RuleError where reading can't continue."""
    document = root.mapping("the sync config")
    document.check(_ROOT_KEYS, report)
    options = read_options(document, report)
    for name in document.names():
        check_place(options.edition, document.key(name), name, report)
    if document.get("streams") is None and document.get("bucket_definitions") is None:
        raise root.fail(_NOTHING, "add `streams:` with at least one stream")
    shared = _ctes(document, report)
    streams = _entries(document, "streams", report, lambda name, key, item: _stream(name, key, item, shared, report))
    buckets = _entries(document, "bucket_definitions", report, lambda name, key, item: _bucket(name, key, item, report))
    events = _entries(document, "event_definitions", report, lambda name, key, item: _event(name, key, item, report))
    _refuse_clash(document, report)
    if not (streams or buckets or report.errors):
        item = document.get("streams") or document.get("bucket_definitions") or root
        hint = "devices get nothing: add at least one"
        report.add(RuleError(Code.NO_EFFECT, _NOTHING, item.place, hint, Severity.WARNING))
    return Config(options, streams, buckets, events, shared)


def _entries(document: Mapping, name: str, report: Report, read: Callable[[str, Item, Item], T]) -> tuple[T, ...]:
    """The definitions of one kind, without those that could not be read."""
    item = document.get(name)
    if item is None:
        return ()
    try:
        entries = item.mapping(f"`{name}`")
    except RuleError as error:
        report.add(error)
        return ()
    entries.check(None, report)
    found: list[T] = []
    for key, value in entries.items():
        with report.collecting():
            found.append(read(key, entries.key(key), value))
    return tuple(found)


def _refuse_clash(document: Mapping, report: Report) -> None:
    """Report streams and bucket definitions with the same name, because subscriptions use one name for both."""
    streams, buckets = document.get("streams"), document.get("bucket_definitions")
    if streams is None or buckets is None or report.errors:
        return
    names = set(streams.mapping("`streams`").names())
    definitions = buckets.mapping("`bucket_definitions`")
    for name in definitions.names():
        if name in names:
            message = f"`{name}` is a stream and a bucket definition"
            report.add(definitions.key(name).fail(message, "rename one of them"))


def _ctes(owner: Mapping, report: Report) -> dict[str, SqlText]:
    item = owner.get("with")
    if item is None:
        return {}
    try:
        entries = item.mapping("`with`")
    except RuleError as error:
        report.add(error)
        return {}
    entries.check(None, report)
    found: dict[str, SqlText] = {}
    for name, value in entries.items():
        with report.collecting():
            found[name] = _sql(value, f"the query `{name}`", report)
    return found


def _stream(name: str, key: Item, item: Item, shared: MappingType[str, SqlText], report: Report) -> StreamSource:
    stream = item.mapping(f"stream `{name}`")
    stream.check(_STREAM_KEYS, report)
    queries: tuple[SqlText, ...] = ()
    with report.collecting():
        queries = _queries(name, key, stream, report)
    own = _ctes(stream, report)
    return StreamSource(
        name,
        key.place,
        queries,
        {**shared, **own},
        tuple(own),
        flag(stream, "auto_subscribe", report),
        _priority(stream, report),
        flag(stream, "accept_potentially_dangerous_queries", report),
    )


def _queries(name: str, key: Item, stream: Mapping, report: Report) -> tuple[SqlText, ...]:
    one, several = stream.get("query"), stream.get("queries")
    hint = "give it exactly one of the two"
    if several is None:
        if one is None:
            raise key.fail(f"stream `{name}` has neither `query` nor `queries`", hint)
        return _texts([one], report)
    if one is not None:
        report.add(key.fail(f"stream `{name}` has both `query` and `queries`", hint))
    items = several.sequence("`queries`")
    if one is not None:
        return _texts([one, *items], report)
    if not items:
        raise key.fail(f"stream `{name}` has no query", "add a SELECT below `queries`")
    return _texts(items, report)


def _texts(items: list[Item], report: Report) -> tuple[SqlText, ...]:
    texts: list[SqlText] = []
    for item in items:
        with report.collecting():
            texts.append(_sql(item, "a query", report))
    return tuple(texts)


def _sql(item: Item, what: str, report: Report) -> SqlText:
    text = item.sql(what)
    report.spend(text.words() // 5, text.place())  # reading costs less than compiling
    return text


def _bucket(name: str, key: Item, item: Item, report: Report) -> BucketSource:
    what = f"bucket definition `{name}`"
    bucket = item.mapping(what)
    bucket.check(_BUCKET_KEYS, report)
    data = bucket.get("data")
    if data is None:
        raise key.fail(f"{what} has no `data`", "list its data queries under `data`")
    items = data.sequence("`data`")
    if not items:
        message = f"{what} has no query, and so no rows"
        report.add(RuleError(Code.NO_EFFECT, message, key.place, "add a SELECT below `data`", Severity.WARNING))
    return BucketSource(
        name,
        key.place,
        bucket.read("parameters", lambda each: _parameters(each, report), (), report),
        _texts(items, report),
        _priority(bucket, report),
        bucket.key("priority").place if bucket.get("priority") is not None else None,
        flag(bucket, "accept_potentially_dangerous_queries", report),
    )


def _parameters(item: Item, report: Report) -> tuple[SqlText, ...]:
    return _texts(item.sequence("`parameters`") if item.is_sequence else [item], report)


def _event(name: str, key: Item, item: Item, report: Report) -> EventSource:
    what = f"event `{name}`"
    if name in _CUSTOM_WRITE_CHECKPOINTS:
        raise key.fail(
            f"{what} would number the writes of devices by rows of yours, which is not supported",
            "remove it: devices have their writes numbered by themselves or by the service",
        )
    event = item.mapping(what)
    event.check(("payloads",), report)
    payloads = event.get("payloads")
    if payloads is None:
        raise key.fail(f"{what} has no `payloads`", "list its queries under `payloads`")
    return EventSource(name, key.place, _texts(payloads.sequence("`payloads`"), report))


def _priority(mapping: Mapping, report: Report) -> int:
    return mapping.read("priority", lambda each: each.integer("`priority`", range(4)), _DEFAULT_PRIORITY, report)
