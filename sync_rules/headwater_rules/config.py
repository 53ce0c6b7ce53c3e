"""What a sync config says besides SQL: options, streams and their settings."""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from dataclasses import dataclass

from headwater_rules.document import Item, Mapping
from headwater_rules.errors import Code, Place, Report, RuleError, Severity
from headwater_rules.plan import ConversionOptions
from headwater_rules.sqltext import SqlText

_ROOT_KEYS = ("config", "streams", "with", "bucket_definitions", "event_definitions")
_CONFIG_KEYS = (
    "edition", "storage_version", "strict", "timestamp_max_precision", "timestamps_iso8601", "versioned_bucket_ids",
    "fixed_json_extract", "custom_postgres_types", "unstable_sqlite_expression_engine",
)  # fmt: skip
_STREAM_KEYS = ("query", "queries", "with", "auto_subscribe", "priority", "accept_potentially_dangerous_queries")
_PRECISIONS = {"seconds": 0, "milliseconds": 3, "microseconds": 6, "nanoseconds": 6}  # Postgres has microseconds
_EDITION_HINT = "write `edition: 3` under `config`, and the queries as `streams`"


@dataclass(frozen=True, slots=True)
class StreamSource:
    """One stream as written. `ctes` are all it may name, `own_ctes` those written beside it."""

    name: str
    place: Place
    queries: tuple[SqlText, ...]
    ctes: MappingType[str, SqlText]
    own_ctes: tuple[str, ...]
    auto_subscribe: bool
    priority: int
    accepts_dangerous: bool


@dataclass(frozen=True, slots=True)
class Config:
    """A sync config whose SQL is still text."""

    options: ConversionOptions
    strict: bool
    streams: tuple[StreamSource, ...]


def read_config(root: Item, report: Report) -> Config:
    """Everything but the SQL. Findings go to `report`; raises RuleError where reading on makes no sense."""
    document = root.mapping("the sync config")
    document.check(_ROOT_KEYS, report)
    options, strict = _options(document, report)
    for name in ("bucket_definitions", "event_definitions"):
        if document.get(name) is not None:
            message = f"`{name}` are not accepted: this version reads edition 3 streams"
            report.add(document.key(name).fail(message, "write them as `streams`", Code.EDITION))
    streams = document.get("streams")
    if streams is None:
        if document.get("bucket_definitions") is None:
            raise root.fail("the sync config defines no streams", "add `streams:` with at least one stream")
        return Config(options, strict, ())
    shared = _ctes(document, report)
    entries = streams.mapping("`streams`")
    entries.check(None, report)
    if not entries.items():
        raise streams.fail("the sync config defines no streams", "add at least one below `streams`")
    sources = [_stream(name, entries.key(name), item, shared, report) for name, item in entries.items()]
    return Config(options, strict, tuple(source for source in sources if source is not None))


def _options(document: Mapping, report: Report) -> tuple[ConversionOptions, bool]:
    item = document.get("config")
    if item is None:
        report.add(document.item.fail("the edition of the sync config is missing", _EDITION_HINT, Code.EDITION))
        return ConversionOptions(), False
    try:
        config = item.mapping("`config`")
    except RuleError as error:
        report.add(error)
        return ConversionOptions(), False
    config.check(_CONFIG_KEYS, report)
    _edition(config, report)
    _ineffective(config, report)
    iso = _flag(config, "timestamps_iso8601", report)
    custom_types = _flag(config, "custom_postgres_types", report)
    if not _flag(config, "fixed_json_extract", report):
        hint = "remove the line: edition 3 reads JSON paths in the fixed way"
        key = config.key("fixed_json_extract")
        report.add(key.fail("`fixed_json_extract: false` is not supported", hint, Code.OPTION))
    options = ConversionOptions(iso, custom_types, _digits(config, iso, report))
    return options, _flag(config, "strict", report, default=False)


def _flag(mapping: Mapping, name: str, report: Report, *, default: bool = True) -> bool:
    return mapping.read(name, lambda item: item.boolean(f"`{name}`"), default, report)


def _edition(config: Mapping, report: Report) -> None:
    item = config.get("edition")
    if item is None:
        message = "the edition of the sync config is missing"
        report.add(config.item.fail(message, _EDITION_HINT, Code.EDITION))
        return
    try:
        edition = item.integer("`edition`", (1, 2, 3))
    except RuleError as error:
        report.add(error)
        return
    if edition != 3:
        report.add(item.fail(f"edition {edition} is not accepted by this version", _EDITION_HINT, Code.EDITION))


def _digits(config: Mapping, iso: bool, report: Report) -> int:
    item = config.get("timestamp_max_precision")
    if item is None:
        return _PRECISIONS["microseconds"]
    name = config.read("timestamp_max_precision", lambda each: each.string("`timestamp_max_precision`"), "", report)
    if name not in _PRECISIONS:
        if name:
            message = f"unknown precision `{name}`"
            report.add(item.fail(message, f"use one of {', '.join(_PRECISIONS)}", Code.OPTION))
        return _PRECISIONS["microseconds"]
    if not iso:
        hint = "remove `timestamps_iso8601: false`"
        report.add(item.fail("`timestamp_max_precision` needs ISO 8601 timestamps", hint, Code.OPTION))
    return _PRECISIONS[name]


def _ineffective(config: Mapping, report: Report) -> None:
    """Options that choose between ways of the published service that are one here."""
    config.read("storage_version", lambda each: each.integer("`storage_version`", (2, 3)), 2, report)
    for name in ("versioned_bucket_ids", "unstable_sqlite_expression_engine"):
        if not _flag(config, name, report):
            warning = RuleError(
                Code.NO_EFFECT, f"`{name}: false` has no effect", config.key(name).place, "remove it", Severity.WARNING
            )
            report.add(warning)


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
        try:
            found[name] = value.sql(f"the query `{name}`")
        except RuleError as error:
            report.add(error)
    return found


def _stream(name: str, key: Item, item: Item, shared: MappingType[str, SqlText], report: Report) -> StreamSource | None:
    try:
        stream = item.mapping(f"stream `{name}`")
        stream.check(_STREAM_KEYS, report)
        queries = _queries(name, key, stream, report)
    except RuleError as error:
        report.add(error)
        return None
    own = _ctes(stream, report)
    return StreamSource(
        name,
        key.place,
        queries,
        {**shared, **own},
        tuple(own),
        _flag(stream, "auto_subscribe", report, default=False),
        stream.read("priority", lambda each: each.integer("`priority`", range(4)), 3, report),
        _flag(stream, "accept_potentially_dangerous_queries", report, default=False),
    )


def _queries(name: str, key: Item, stream: Mapping, report: Report) -> tuple[SqlText, ...]:
    one, several = stream.get("query"), stream.get("queries")
    if (one is None) == (several is None):
        what = "both `query` and `queries`" if one is not None else "neither `query` nor `queries`"
        raise key.fail(f"stream `{name}` has {what}", "give it exactly one of the two")
    items = [one] if one is not None else several.sequence("`queries`") if several is not None else []
    if not items:
        raise key.fail(f"stream `{name}` has no query", "add a SELECT below `queries`")
    texts: list[SqlText] = []
    for item in items:
        try:
            texts.append(item.sql("a query"))
        except RuleError as error:
            report.add(error)
    return tuple(texts)
