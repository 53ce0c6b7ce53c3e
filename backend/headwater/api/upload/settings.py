"""`upload`: what devices may write through the endpoint. Without this section they may write nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headwater.config.document import redacted
from headwater.config.reader import GIVE_ANOTHER, Section
from headwater.source.connect import SourceSettings
from headwater.source.upload.settings import Conflict, Operation, TableRule, UploadSettings, UploadTarget
from headwater_rules.plan import shard_of

_POLICIES = (Conflict.LAST_WRITE_WINS.value, Conflict.REJECT_CHANGED.value)
_OPERATIONS = tuple(each.value for each in Operation)


def read_upload(root: Section, sources: Sequence[SourceSettings], *, listed: bool = False) -> UploadSettings | None:
    """Read the section; None when it is missing, or only names sources that are gone. Adds errors to the findings. A
    source that is not there is one unless some are `listed`, and so come and go: then it is a warning, and what devices
    write to its tables is refused."""
    if "upload" not in root:
        return None
    section = root.section("upload")
    general = _access(section)
    known = _Known(sources, listed)
    single = _single(section, known)
    tables = {name: _table(name, each, known) for name, each in section.named("tables").items()}
    if not tables:
        section.error("no table is allowed", "tables", fix="name those that devices may write: tables: {todos: {}}")
    split = section.choice("across_sources", "refuse", ("refuse", "split")) == "split"
    if not sources:
        return None  # an error that is reported elsewhere
    targets = {name: target for name, (_, target) in tables.items()}
    if len(sources) == 1 and not any(target.shards or not target.sources for target in targets.values()):
        targets = {}

    def of(source: SourceSettings) -> UploadSettings:
        its = {name: rule for name, (rule, target) in tables.items() if source.name in target.sources}
        own = single.get(source.name, general)
        login = (own if own.user is not None else general).login(source)
        return UploadSettings(login, own.role or general.role, its, targets=targets, split=split)

    by_source = [of(source) for source in sources]
    _require_roles(section, by_source)
    first = section.read(by_source[0])
    section.refuse_unknown()
    if listed and not any(each.tables for each in by_source):
        section.warn("no source of a table is among the connections: no upload is taken meanwhile", "tables")
        return None
    others = [replace(first, login=its.login, role=its.role, tables=its.tables) for its in by_source[1:] if its.tables]
    return replace(first, others=tuple(others))


def _require_roles(section: Section, by_source: Sequence[UploadSettings]) -> None:
    """Report sources that are written to and have no role to write as."""
    written = [each for each in by_source if each.tables] or by_source
    lacking = [each.login.name for each in written if not each.role]
    if lacking:
        where = "" if len(lacking) == len(by_source) else f" in {', '.join(lacking)}"
        section.error(f"no role is given to write as{where}", "role", fix=_ADD_ROLE)


@dataclass(frozen=True, slots=True)
class _Access:
    """How to write to a source, as the section at `path` says it: the role, and the login that becomes it. Empty and
    None where it does not say."""

    path: str
    role: str
    user: str | None
    password: str

    def login(self, source: SourceSettings) -> SourceSettings:
        if self.user is None:
            return source
        return replace(source, user=self.user, password=self.password, login_in=self.path)


def _access(section: Section) -> _Access:
    user, password = section.text("username"), section.text("password")
    section.refuse_example("password", password or "", fix=GIVE_ANOTHER)
    if user is None and password is not None:
        section.error("is given without a username", "password", fix="add username")
    return _Access(section.path, section.text("role") or "", user, password or "")


@dataclass(frozen=True, slots=True)
class _Known:
    """The sources that there are now; with `listed`, others may come and go."""

    sources: Sequence[SourceSettings]
    listed: bool

    def called(self, name: str) -> list[str]:
        """The names of the sources that a name means."""
        return [source.name for source in self.sources if source.is_called(name)]

    def lacks(self, section: Section, what: str, key: str = "", *, fix: str, instead: str) -> None:
        """Report that a source is not there, unless there is none at all, which is reported elsewhere. `instead` says
        what happens while one of a list is gone."""
        if self.listed:
            section.warn(f"{what} at present: {instead}", key)
        elif self.sources:
            section.error(what, key, fix=fix)

    def __str__(self) -> str:
        """All that sources can be called, tags first."""
        return ", ".join(dict.fromkeys([*(each.tag for each in self.sources), *(each.name for each in self.sources)]))


def _single(section: Section, known: _Known) -> dict[str, _Access]:
    """What is said of single sources, by their names. A tag means all its shards that are not named themselves."""
    given = section.named("sources")
    found: dict[str, _Access] = {}
    for name, own in given.items():
        names = known.called(name)
        if not names:
            fix = f"name one of: {known}"
            known.lacks(own, f"there is no source {redacted(name)}", fix=fix, instead="it says nothing")
        access = _access(own)
        own.refuse_unknown()
        found |= {each: access for each in names if each == name or each not in given}
    return found


_ADD_ROLE = "add one, such as role: app_user, which `headwater source prepare --upload` creates"


def _table(name: str, section: Section, known: _Known) -> tuple[TableRule, UploadTarget]:
    target, schema, table = _target(name, section, known)
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
    return rule, target


def _target(name: str, section: Section, known: _Known) -> tuple[UploadTarget, str, str]:
    """Where a table is: its source or shards, its schema and its name. The source is that of `source`, or else what
    `table` begins with, or else the one that sync configs mean, too: the only one, or `default`."""
    key = "table" if "table" in section else ""
    schema, _, table = (section.text("table") or name).rpartition(".")
    sources = known.sources
    tags = dict.fromkeys(source.tag for source in sources)
    wanted = section.text("source")
    tag, dot, below = schema.partition(".")
    if wanted is None and ((tag in tags and (dot or len(sources) > 1)) or (dot and known.listed)):
        wanted, schema = tag, below
    if wanted is None:
        wanted = sources[0].tag if len(tags) == 1 else _DEFAULT
    names = known.called(wanted)
    if not names and ("source" in section or known.listed):
        at, fix = "source" if "source" in section else key, f"name one of: {known}"
        known.lacks(section, f"there is no source {redacted(wanted)}", at, fix=fix, instead=_REFUSED)
    elif not names and sources:
        section.error("does not say which source the table is in", key, fix=f"add `source`, one of: {known}")
    return _shards(section, wanted, names, known), schema, table


_DEFAULT = "default"
_REFUSED = "what devices write to it is refused"


def _shards(section: Section, tag: str, names: Sequence[str], known: _Known) -> UploadTarget:
    """What tells the shard of a row, if the table is in several."""
    if "shard" not in section:
        if len(names) > 1:
            what = f"does not say which shard of {redacted(tag)} a row is in"
            section.error(what, fix="add shard: {claim: …}, a claim of the token, or shard: {column: …}")
        return UploadTarget(tuple(names))
    rule = section.section("shard")
    claim, column = rule.text("claim"), rule.text("column")
    if (claim is None) == (column is None):
        rule.error("must name either a claim of the token or a column", fix="write shard: {claim: tenant}")
    shards = {shard_of(name): name for name in names}
    shards.pop("", None)
    if "map" in rule:
        given = rule.pairs("map")
        for value, shard in given.items():
            if shard not in shards:
                what = f"{redacted(value)}: there is no shard {redacted(shard)} of {redacted(tag)}"
                known.lacks(rule, what, "map", fix="", instead=_REFUSED)
        shards = {value: shards[shard] for value, shard in given.items() if shard in shards}
    rule.refuse_unknown()
    if len(names) < 2 and not known.listed:
        section.error(f"{redacted(tag)} has no shards to choose among", "shard", fix="remove it")
    path = tuple((claim or "").split(".")) if claim else ()
    return UploadTarget(tuple(names), path, column or "", shards)


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
