"""`upload`: what devices may write through the endpoint. Without this section they may write nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headwater.config.reader import GIVE_ANOTHER, Section
from headwater.source.connect import SourceSettings
from headwater.source.upload.settings import Conflict, Operation, TableRule, UploadSettings

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
    settings = section.read(UploadSettings(_login(section, sources[0]), role or "", tables))
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
    rule = section.read(
        TableRule(
            schema or "public",
            table,
            operations=_operations(section),
            conflict=policy,
            function=function,
            key=section.texts("key") or None,
            skip_gone=section.choice("when_gone", "park", ("park", "skip")) == "skip",
            accept_zero_rows=section.choice("zero_rows", "look", ("look", "accept")) == "accept",
            drop_unknown=drop,
            renamed=renamed,
        )
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
