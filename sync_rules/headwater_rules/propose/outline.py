"""The tables of a database as far as a proposal reads them, and what names of tables and columns usually mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from headwater_rules.schema import SourceColumn, ValueKind

_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
_ID = re.compile(r"_(?:id|uuid|fk|key)$")
_SECRET = re.compile(
    r"(^|_)(password|passwd|passwort|pwd|secrets?|tokens?|salt|otp|totp|api_?keys?|private_?keys?|access_?keys?|ssn"
    r"|cvv|card_number|recovery_codes?|backup_codes?|digest)(_|$)"
)
_MANAGED_SCHEMA = re.compile(
    r"auth|storage|_?realtime|_analytics|vault|graphql(_public)?|extensions|net|cron|pg(sodium.*|bouncer|mq|boss)"
    r"|supabase_.*|hdb_catalog|drizzle|graphile_.*|headwater.*|powersync|topology|tiger.*|partman"
)
_FRAMEWORK = re.compile(
    r"(django|celery|active_storage|solid|oauth|account_email|social(_auth|account)|_?prisma|knex|flyway)_.*"
    r"|auth_(group|permission|user_groups|user_user_permissions|group_permissions)|ar_internal_metadata"
    r"|(schema_)?migrations?|alembic_version|failed_jobs|spatial_ref_sys"
    r"|(password_reset|refresh|access|personal_access|verification)_tokens?"
)
MEMBERSHIPS: Final = frozenset({"member", "membership", "participant", "collaborator"})
"""The last word of a table that says who takes part in something."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A column whose values are those of a column of another table. `declared`: by a foreign key, not only by name.
    `owning`: never null, and a row is deleted with the row that it refers to."""

    column: str
    schema: str
    table: str
    target: str
    declared: bool = True
    owning: bool = False


@dataclass(frozen=True, slots=True)
class OutlinedTable:
    """A table. `key` is its primary key, empty without one; `references` have one column each. `rows` is about how many
    it has, None if that is not known. `computed` columns are written by Postgres alone, `required` ones have neither a
    null nor a default. `choices` are the columns of an enum, with its values. `secured`: policies of its own decide who
    may write what."""

    schema: str
    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...] = ()
    references: tuple[Reference, ...] = ()
    rows: int | None = None
    computed: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    secured: bool = False

    @property
    def place(self) -> tuple[str, str]:
        return self.schema, self.name

    @property
    def shown(self) -> str:
        """A name for comments."""
        return on_one_line(self.name if self.schema == "public" else f"{self.schema}.{self.name}")

    @property
    def id_column(self) -> str | None:
        """The one column that identifies a row: the primary key's, or without a key the column `id`."""
        if self.key:
            return self.key[0] if len(self.key) == 1 else None
        return "id" if self.column("id") is not None else None

    @property
    def is_frameworks_own(self) -> bool:
        """Whether it probably belongs to a framework or a host, not to the app."""
        own = _MANAGED_SCHEMA.fullmatch(self.schema) or _FRAMEWORK.fullmatch(snake(self.name))
        return own is not None or "%" in self.name

    def column(self, name: str) -> SourceColumn | None:
        return next((column for column in self.columns if column.name == name), None)

    def reference(self, column: str) -> Reference | None:
        """The first reference of a column."""
        return next((each for each in self.references if each.column == column), None)


def on_one_line(name: str) -> str:
    return " ".join(name.split())


def snake(name: str) -> str:
    """A name in lower case with underscores: `ownerId` is `owner_id`."""
    return "_".join(part for part in _BOUNDARY.split(name) if part).lower()


def words_of(name: str) -> list[str]:
    """The words of a name, in the singular."""
    return [_singular(word) for word in snake(name).split("_")]


def last_word(name: str) -> str:
    """The last word of a name, in the singular."""
    return words_of(name)[-1]


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def without_id(column: str) -> str:
    """What a column of ids names: `owner` for `ownerId`."""
    return _ID.sub("", snake(column))


def is_secret(column: str) -> bool:
    """Whether a column probably holds what no device needs, such as the digest of a password."""
    return _SECRET.search(snake(column)) is not None


def is_number(table: OutlinedTable, column: str) -> bool:
    """Whether the values of a column are numbers, which a token's text is compared with as text."""
    found = table.column(column)
    return found is not None and found.kind in {ValueKind.INTEGER, ValueKind.REAL}


def is_one_of_several(table: OutlinedTable, column: str) -> bool:
    """Whether a column without a foreign key is the id of one of several tables: with a type, kind or class beside it,
    as `owner_id` with `owner_type`."""
    if (reference := table.reference(column)) is not None and reference.declared:
        return False
    names = {snake(each.name) for each in table.columns}
    stems = {snake(column), without_id(column)}
    return any(f"{stem}_{end}" in names for stem in stems for end in ("type", "kind", "class"))


def with_references_by_name(tables: tuple[OutlinedTable, ...]) -> list[OutlinedTable]:
    """The tables with references that only names show: `list_id` is the id of `list` or `lists`."""
    called: dict[tuple[str, ...], OutlinedTable] = {}
    for table in tables:
        called.setdefault((table.schema, *words_of(table.name)), table)

    def by_name(table: OutlinedTable) -> Iterator[Reference]:
        for name in [column.name for column in table.columns]:
            other = called.get((table.schema, *words_of(without_id(name))))
            if other is None or other.name == table.name or without_id(name) == snake(name) or (name,) == table.key:
                continue
            if table.reference(name) is not None or is_one_of_several(table, name):
                continue
            if (key := other.id_column) is not None and is_number(table, name) == is_number(other, key):
                yield Reference(name, other.schema, other.name, key, declared=False)

    return [replace(table, references=(*table.references, *by_name(table))) for table in tables]
