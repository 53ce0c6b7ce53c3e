"""Reads everything in a sync config except SQL: options, streams, bucket definitions and their settings."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from typing import TypeVar

from headwater_rules.errors import RuleCode
from headwater_rules.plan import ConversionOptions
from headwater_rules.text.computed import ComputedSource, read_computed
from headwater_rules.text.document import Mapping, YamlItem
from headwater_rules.text.written import SqlText, read_sql

_CUSTOM_WRITE_CHECKPOINTS = frozenset({"write_checkpoints", "checkpoint_requests"})
"""Events that devices would wait for: to ignore them would keep their own writes from them for ever."""

_ROOT_KEYS = ("config", "tables", "streams", "with", "bucket_definitions", "event_definitions")
_OPTION_KEYS = (
    "edition", "storage_version", "strict", "timestamp_max_precision", "timestamps_iso8601", "versioned_bucket_ids",
    "fixed_json_extract", "custom_postgres_types", "unstable_sqlite_expression_engine",
)  # fmt: skip
_STREAM_KEYS = ("query", "queries", "with", "auto_subscribe", "priority", "accept_potentially_dangerous_queries")
_BUCKET_KEYS = ("parameters", "data", "priority", "accept_potentially_dangerous_queries")
_PRECISIONS = {"seconds": 0, "milliseconds": 3, "microseconds": 6, "nanoseconds": 6}  # Postgres has microseconds
_LATEST = 3
_EDITION_HINT = "write `edition: 3` under `config`"
_DEFAULT_PRIORITY = 3
_NOTHING = "the sync config defines no streams"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the whole config. `strict` turns warnings about unsafe parameters into errors."""

    edition: int
    conversion: ConversionOptions
    fixed_paths: bool
    strict: bool


@dataclass(frozen=True, slots=True)
class StreamSource:
    """A stream as written. `ctes` are all that it may use, `own_ctes` the names of those defined in it."""

    name: str
    key: YamlItem
    queries: tuple[SqlText, ...]
    ctes: MappingType[str, SqlText]
    own_ctes: tuple[str, ...]
    auto_subscribe: bool
    priority: int
    accepts_dangerous: bool


@dataclass(frozen=True, slots=True)
class BucketSource:
    """A bucket definition as written. `has_priority`: it sets one for all its buckets."""

    name: str
    key: YamlItem
    parameters: tuple[SqlText, ...]
    data: tuple[SqlText, ...]
    priority: int
    has_priority: bool
    accepts_dangerous: bool


@dataclass(frozen=True, slots=True)
class EventSource:
    """An event definition as written."""

    name: str
    key: YamlItem
    payloads: tuple[SqlText, ...]


@dataclass(frozen=True, slots=True)
class Config:
    """A sync config whose SQL is not parsed yet. `shared_ctes` are those for all streams."""

    options: Options
    streams: tuple[StreamSource, ...]
    buckets: tuple[BucketSource, ...]
    events: tuple[EventSource, ...]
    shared_ctes: MappingType[str, SqlText]
    tables: tuple[ComputedSource, ...] = ()


def read_config(root: YamlItem) -> Config:
    """Read everything except SQL. Findings go to the root's report; raises RuleError where reading can't continue."""
    document = root.mapping("the sync config")
    document.check(_ROOT_KEYS)
    options = _options(document)
    _check_edition(document, options.edition)
    if document.get("streams") is None and document.get("bucket_definitions") is None:
        raise root.fail(_NOTHING, "add `streams:` with at least one stream")
    shared = _ctes(document)
    streams = _entries(document, "streams", lambda name, key, item: _stream(name, key, item, shared))
    buckets = _entries(document, "bucket_definitions", _bucket)
    events = _entries(document, "event_definitions", _event)
    _refuse_clash(document)
    if not (streams or buckets or root.report.errors):
        item = document.get("streams") or document.get("bucket_definitions") or root
        item.warn(RuleCode.NO_EFFECT, _NOTHING, "devices get nothing: add at least one")
    return Config(options, streams, buckets, events, shared, _entries(document, "tables", read_computed))


# options


def _options(document: Mapping) -> Options:
    """The options, with the edition's defaults. An invalid edition is read as the latest, which causes the fewest
    follow-up errors."""
    config = _optional(document, "config")
    if config is None:
        edition, since_2 = (1, False) if document.get("config") is None else (_LATEST, True)
        return Options(edition, ConversionOptions(since_2, since_2), since_2, strict=False)
    config.check(_OPTION_KEYS)
    absent = 1 if config.get("edition") is None else _LATEST
    edition = config.read("edition", lambda each: each.integer("`edition`", (1, 2, 3)), absent)
    since_2 = edition >= 2
    _check_ineffective(config, edition)
    iso = _flag(config, "timestamps_iso8601", default=since_2)
    custom_types = _flag(config, "custom_postgres_types", default=since_2)
    conversion = ConversionOptions(iso, custom_types, _digits(config, iso))
    return Options(
        edition, conversion, _flag(config, "fixed_json_extract", default=since_2), strict=_flag(config, "strict")
    )


def _flag(mapping: Mapping, name: str, *, default: bool = False) -> bool:
    """A setting that is true or false."""
    return mapping.read(name, lambda item: item.boolean(f"`{name}`"), default)


def _digits(config: Mapping, iso: bool) -> int:
    def digits(item: YamlItem) -> int:
        name = item.string("`timestamp_max_precision`")
        if name not in _PRECISIONS:
            raise item.fail(f"unknown precision `{name}`", f"use one of {', '.join(_PRECISIONS)}", RuleCode.OPTION)
        if not iso:
            hint = "write `timestamps_iso8601: true`"
            item.reject("`timestamp_max_precision` needs ISO 8601 timestamps", hint, RuleCode.OPTION)
        return _PRECISIONS[name]

    return config.read("timestamp_max_precision", digits, _PRECISIONS["microseconds"])


def _check_ineffective(config: Mapping, edition: int) -> None:
    """Report options that select between behaviours of the published service which do not differ here."""
    config.read("storage_version", lambda each: each.integer("`storage_version`", (1, 2, 3)), 2)
    name, default = "versioned_bucket_ids", edition >= 2
    if _flag(config, name, default=default) != default:
        config.key(name).warn(RuleCode.NO_EFFECT, f"`{name}` has no effect", "remove it")
    name = "unstable_sqlite_expression_engine"
    if not _flag(config, name):
        return
    if edition < 3:
        config.key(name).reject(f"`{name}` needs edition 3", f"remove it, or {_EDITION_HINT}", RuleCode.OPTION)
        return
    message = f"`{name}` is ignored: expressions keep their usual meaning, so other rows may pass"
    config.key(name).warn(RuleCode.NO_EFFECT, message, "remove it, and compare what `headwater rules preview` gives")


def _check_edition(document: Mapping, edition: int) -> None:
    """Report definitions that the edition does not have."""
    for name in document.names():
        key = document.key(name)
        if name == "bucket_definitions" and edition >= 3:
            hint = "write them as `streams`, or `edition: 2` under `config`"
            key.reject("edition 3 has no `bucket_definitions`", hint, RuleCode.EDITION)
        elif name in {"streams", "with"} and edition < 2:
            need = "need" if name == "streams" else "needs"
            key.reject(f"`{name}` {need} edition 2 or later", _EDITION_HINT, RuleCode.EDITION)
        elif name == "streams" and edition == 2:
            key.warn(RuleCode.OLD_EDITION, "streams of edition 2 read `!=` and `*` in an older way", _EDITION_HINT)


# definitions


def _optional(owner: Mapping, name: str) -> Mapping | None:
    """A mapping within another one; None if it is absent or something else, which is reported."""
    return owner.read(name, lambda item: item.mapping(f"`{name}`"), None)


def _entries(document: Mapping, name: str, read: Callable[[str, YamlItem, YamlItem], T]) -> tuple[T, ...]:
    """The definitions of one kind, without those that could not be read."""
    written = document.get(name)
    if written is not None and written.is_sequence:
        written.reject(f"`{name}` must be a mapping", "write `name:` before each definition, without the `- `")
        return ()
    entries = _optional(document, name)
    if entries is None:
        return ()
    entries.check()
    found: list[T] = []
    for key, value in entries.items():
        with document.report.collecting():
            found.append(read(key, entries.key(key), value))
    return tuple(found)


def _refuse_clash(document: Mapping) -> None:
    """Report streams and bucket definitions with the same name, because subscriptions use one name for both."""
    streams, buckets = document.get("streams"), document.get("bucket_definitions")
    if streams is None or buckets is None or document.report.errors:
        return
    names = set(streams.mapping("`streams`").names())
    definitions = buckets.mapping("`bucket_definitions`")
    for name in definitions.names():
        if name in names:
            definitions.key(name).reject(f"`{name}` is a stream and a bucket definition", "rename one of them")


def _ctes(owner: Mapping) -> dict[str, SqlText]:
    return dict(_entries(owner, "with", lambda name, _, item: (name, _sql(item, f"the query `{name}`"))))


def _stream(name: str, key: YamlItem, item: YamlItem, shared: MappingType[str, SqlText]) -> StreamSource:
    if item.is_text:
        raise item.fail(f"stream `{name}` must be a mapping", "write the SELECT as `query: SELECT …` below its name")
    stream = item.mapping(f"stream `{name}`")
    stream.check(_STREAM_KEYS)
    queries: tuple[SqlText, ...] = ()
    with item.report.collecting():
        queries = _queries(name, key, stream)
    own = _ctes(stream)
    return StreamSource(
        name, key, queries, {**shared, **own}, tuple(own), _flag(stream, "auto_subscribe"), _priority(stream),
        _flag(stream, "accept_potentially_dangerous_queries"),
    )  # fmt: skip


def _queries(name: str, key: YamlItem, stream: Mapping) -> tuple[SqlText, ...]:
    one, several = stream.get("query"), stream.get("queries")
    hint = "give it exactly one of the two"
    if one is None and several is None:
        raise key.fail(f"stream `{name}` has neither `query` nor `queries`", hint)
    if one is not None and several is not None:
        key.reject(f"stream `{name}` has both `query` and `queries`", hint)
    if one is not None and several is None and one.is_sequence:
        message = "`query` is one query, and this is a list"
        raise stream.key("query").fail_with(message, "call it `queries`", "queries")
    if several is not None and one is None and several.is_text:
        message = "`queries` is a list, and this is one query"
        raise stream.key("queries").fail_with(message, "call it `query`", "query")
    items = [*([] if one is None else [one]), *([] if several is None else several.sequence("`queries`"))]
    if not items:
        raise key.fail(f"stream `{name}` has no query", "add a SELECT below `queries`")
    return _texts(items)


def _texts(items: list[YamlItem]) -> tuple[SqlText, ...]:
    texts: list[SqlText] = []
    for item in items:
        with item.report.collecting():
            texts.append(_sql(item, "a query"))
    return tuple(texts)


def _sql(item: YamlItem, what: str) -> SqlText:
    text = read_sql(item, what)
    item.report.spend(text.words() // 5, text.span)  # reading costs less than compiling
    return text


def _bucket(name: str, key: YamlItem, item: YamlItem) -> BucketSource:
    what = f"bucket definition `{name}`"
    bucket = item.mapping(what)
    bucket.check(_BUCKET_KEYS)
    data = bucket.get("data")
    if data is None:
        raise key.fail(f"{what} has no `data`", "list its data queries under `data`")
    items = data.sequence("`data`")
    if not items:
        key.warn(RuleCode.NO_EFFECT, f"{what} has no query, and so no rows", "add a SELECT below `data`")
    parameters: tuple[SqlText, ...] = bucket.read("parameters", _parameters, ())
    return BucketSource(
        name, key, parameters, _texts(items), _priority(bucket), bucket.get("priority") is not None,
        _flag(bucket, "accept_potentially_dangerous_queries"),
    )  # fmt: skip


def _parameters(item: YamlItem) -> tuple[SqlText, ...]:
    return _texts(item.sequence("`parameters`") if item.is_sequence else [item])


def _event(name: str, key: YamlItem, item: YamlItem) -> EventSource:
    what = f"event `{name}`"
    if name in _CUSTOM_WRITE_CHECKPOINTS:
        raise key.fail(
            f"{what} would number the writes of devices by rows of yours, which is not supported",
            "remove it: devices have their writes numbered by themselves or by the service",
        )
    event = item.mapping(what)
    event.check(("payloads",))
    payloads = event.get("payloads")
    if payloads is None:
        raise key.fail(f"{what} has no `payloads`", "list its queries under `payloads`")
    return EventSource(name, key, _texts(payloads.sequence("`payloads`")))


def _priority(mapping: Mapping) -> int:
    return mapping.read("priority", lambda each: each.integer("`priority`", range(4)), _DEFAULT_PRIORITY)
