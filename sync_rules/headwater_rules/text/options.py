"""Reads the `config` part of a sync config: its edition and other options."""

from __future__ import annotations

from dataclasses import dataclass

from headwater_rules.errors import Code, Report, RuleError, Severity
from headwater_rules.plan import ConversionOptions
from headwater_rules.text.document import Item, Mapping

_KEYS = (
    "edition", "storage_version", "strict", "timestamp_max_precision", "timestamps_iso8601", "versioned_bucket_ids",
    "fixed_json_extract", "custom_postgres_types", "unstable_sqlite_expression_engine",
)  # fmt: skip
_PRECISIONS = {"seconds": 0, "milliseconds": 3, "microseconds": 6, "nanoseconds": 6}  # Postgres has microseconds
_LATEST = 3
_OTHER_ENGINE = "unstable_sqlite_expression_engine"
EDITION_HINT = "write `edition: 3` under `config`"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the whole config. `strict` turns warnings about unsafe parameters into errors."""

    edition: int
    conversion: ConversionOptions
    fixed_paths: bool
    strict: bool


def read_options(document: Mapping, report: Report) -> Options:
    """Read the options, with the edition's defaults. Findings go to `report`."""
    item = document.get("config")
    if item is None:
        return _defaults(1)
    try:
        config = item.mapping("`config`")
    except RuleError as error:
        report.add(error)
        return _defaults(_LATEST)
    config.check(_KEYS, report)
    edition = config.read("edition", lambda each: each.integer("`edition`", (1, 2, 3)), _absent(config), report)
    since_2 = edition >= 2
    _ineffective(config, edition, report)
    iso = flag(config, "timestamps_iso8601", report, default=since_2)
    custom_types = flag(config, "custom_postgres_types", report, default=since_2)
    conversion = ConversionOptions(iso, custom_types, _digits(config, iso, report))
    fixed_paths = flag(config, "fixed_json_extract", report, default=since_2)
    return Options(edition, conversion, fixed_paths, flag(config, "strict", report))


def flag(mapping: Mapping, name: str, report: Report, *, default: bool = False) -> bool:
    """A setting that is true or false."""
    return mapping.read(name, lambda item: item.boolean(f"`{name}`"), default, report)


def _defaults(edition: int) -> Options:
    since_2 = edition >= 2
    return Options(edition, ConversionOptions(since_2, since_2), since_2, strict=False)


def _absent(config: Mapping) -> int:
    """The edition of a config without a valid one: 1 if it is missing, and the latest if it is invalid, which causes
    the fewest follow-up errors."""
    return 1 if config.get("edition") is None else _LATEST


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
        hint = "write `timestamps_iso8601: true`"
        report.add(item.fail("`timestamp_max_precision` needs ISO 8601 timestamps", hint, Code.OPTION))
    return _PRECISIONS[name]


def _ineffective(config: Mapping, edition: int, report: Report) -> None:
    """Options that select between behaviours of the published service which do not differ here."""
    config.read("storage_version", lambda each: each.integer("`storage_version`", (1, 2, 3)), 2, report)
    name, default = "versioned_bucket_ids", edition >= 2
    if flag(config, name, report, default=default) != default:
        place = config.key(name).place
        report.add(RuleError(Code.NO_EFFECT, f"`{name}` has no effect", place, "remove it", Severity.WARNING))
    name = _OTHER_ENGINE
    if not flag(config, name, report):
        return
    key = config.key(name)
    if edition < 3:
        report.add(key.fail(f"`{name}` needs edition 3", f"remove it, or {EDITION_HINT}", Code.OPTION))
        return
    message = f"`{name}` is ignored: expressions keep their usual meaning, so other rows may pass"
    hint = "remove it, and compare what `headwater rules preview` gives"
    report.add(RuleError(Code.NO_EFFECT, message, key.place, hint, Severity.WARNING))


def check_place(edition: int, key: Item, name: str, report: Report) -> None:
    """Report definitions that the edition does not have."""
    if name == "bucket_definitions" and edition >= 3:
        hint = "write them as `streams`, or `edition: 2` under `config`"
        report.add(key.fail("edition 3 has no `bucket_definitions`", hint, Code.EDITION))
    if name == "streams" and edition < 2:
        report.add(key.fail("`streams` need edition 2 or later", EDITION_HINT, Code.EDITION))
    if name == "streams" and edition == 2:
        message = "streams of edition 2 read `!=` and `*` in an older way"
        place = key.place
        report.add(RuleError(Code.OLD_EDITION, message, place, EDITION_HINT, Severity.WARNING))
    if name == "with" and edition < 2:
        report.add(key.fail("`with` needs edition 2 or later", EDITION_HINT, Code.EDITION))
