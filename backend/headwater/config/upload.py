"""Reads `upload`: what devices may write through the endpoint. Without this section they may write nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headwater.config.section import GIVE_ANOTHER, Section
from headwater.source.connect import SourceSettings
from headwater.source.upload.settings import Conflict, Operation, TableRule, UploadSettings

_LIMIT = 2**31 - 1
_POLICIES = (Conflict.LAST_WRITE_WINS.value, Conflict.REJECT_CHANGED.value)
_OPERATIONS = tuple(each.value for each in Operation)


def read_upload(root: Section, sources: Sequence[SourceSettings]) -> UploadSettings | None:
    """Read the section; None when it is missing. Adds errors to the findings. Uploads go to the first source."""
    if "upload" not in root:
        return None
    section = root.section("upload")
    role = section.text("role")
    if not role:
        section.error("no role is given to write as", "role", fix=_ADD_ROLE)
    tables = {name: _table(name, each) for name, each in section.named("tables").items()}
    if not tables:
        section.error("no table is allowed", "tables", fix="name those that devices may write: tables: {todos: {}}")
    if not sources:
        return None  # an error that is reported elsewhere
    defaults = UploadSettings(_login(section, sources[0]), role or "", tables)
    settings = replace(
        defaults,
        search_path=section.texts("search_path") if "search_path" in section else defaults.search_path,
        statement_timeout=section.integer("statement_timeout_seconds", defaults.statement_timeout, 1, 60),
        lock_timeout=section.integer("lock_timeout_seconds", defaults.lock_timeout, 1, 60),
        max_connections=section.integer("max_connections", defaults.max_connections, 1, 1000),
        max_waiting=section.integer("max_waiting", defaults.max_waiting, 0, _LIMIT),
        max_per_user=section.integer("max_per_user", defaults.max_per_user, 1, _LIMIT),
        max_parked_per_user=section.integer("max_parked_per_user", defaults.max_parked_per_user, 1, _LIMIT),
        max_parked_bytes_per_user=section.integer(
            "max_parked_mb_per_user", defaults.max_parked_bytes_per_user >> 20, 1, _LIMIT
        )
        << 20,
        max_devices_per_user=section.integer("max_devices_per_user", defaults.max_devices_per_user, 1, _LIMIT),
        max_body_bytes=section.integer("max_body_mb", defaults.max_body_bytes >> 20, 1, 1024) << 20,
        keep_days=section.integer("keep_days", defaults.keep_days, 1, 3650),
        forget_days=section.integer("forget_days", defaults.forget_days, 1, 3650),
        park_after_hours=section.integer("park_after_hours", defaults.park_after_hours, 0, 24 * 3650),
    )
    section.refuse_unknown()
    return settings


_ADD_ROLE = "add one, such as role: app_user, which `headwater source prepare --upload` creates"


def _login(section: Section, source: SourceSettings) -> SourceSettings:
    """The source, with the login of `username` and `password` if they are given."""
    user = section.text("username")
    password = section.text("password")
    section.refuse_example("password", password or "", fix=GIVE_ANOTHER)
    if user is None:
        if password is not None:
            section.error("is given without a username", "password", fix="add username")
        return source
    return replace(source, user=user, password=password or "")


def _table(name: str, section: Section) -> TableRule:
    schema, _, table = (section.text("table") or name).rpartition(".")
    policy, function = _conflict(section)
    drop, renamed = _unknown_columns(section)
    rule = TableRule(
        schema or "public",
        table,
        columns=frozenset(section.texts("columns")) if "columns" in section else None,
        operations=_operations(section),
        conflict=policy,
        function=function,
        key=section.texts("key") or None,
        separator=section.text("key_separator") or "/",
        row_security=section.boolean("row_security", default=True),
        compare=frozenset(section.texts("compare")),
        skip_gone=section.choice("when_gone", "park", ("park", "skip")) == "skip",
        accept_zero_rows=section.choice("zero_rows", "look", ("look", "accept")) == "accept",
        drop_unknown=drop,
        renamed=renamed,
        null_when_absent=frozenset(section.texts("null_when_absent")),
    )
    section.refuse_unknown()
    return rule


def _operations(section: Section) -> frozenset[Operation]:
    if "operations" not in section:
        return frozenset(Operation)
    names = section.texts("operations")
    if not names or not set(names) <= set(_OPERATIONS):
        section.error(f"must name some of {', '.join(_OPERATIONS)}", "operations")
        return frozenset()
    return frozenset(Operation(name) for name in names)


def _unknown_columns(section: Section) -> tuple[bool, tuple[tuple[str, str], ...]]:
    """Whether they are dropped, and the names that some of them have now."""
    if not section.is_mapping("unknown_columns"):
        return section.choice("unknown_columns", "refuse", ("refuse", "drop")) == "drop", ()
    choice = section.section("unknown_columns")
    renamed = tuple(choice.pairs("map").items())
    drops = choice.choice("others", "refuse", ("refuse", "drop")) == "drop"
    choice.refuse_unknown()
    return drops, renamed


def _conflict(section: Section) -> tuple[Conflict, tuple[str, str] | None]:
    if not section.is_mapping("conflict"):
        return Conflict(section.choice("conflict", _POLICIES[0], _POLICIES)), None
    choice = section.section("conflict")
    schema, _, name = (choice.text("function") or "").rpartition(".")
    choice.refuse_unknown()
    if not schema or not name:
        section.error("must name a function with its schema", "conflict", fix="write conflict: {function: app.merge}")
    return Conflict.FUNCTION, (schema, name)
