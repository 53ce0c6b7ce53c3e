"""The tables of databases as far as a proposal reads them: columns, keys, references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headwater_rules.propose.words import plurals, snake
from headwater_rules.schema import SourceColumn, ValueKind

_ID = ("_id", "_uuid", "_fk", "_key")
_TELLS = ("_type", "_kind", "_class")
_TEXTS = frozenset({"text", "character varying", "citext"})


Place = tuple[str, ...]
"""Where a table is: its schema and name, with the tag of its database before them unless that is the default one."""


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
    tag: str = ""

    @property
    def place(self) -> Place:
        return _place(self.tag, self.schema, self.table)


@dataclass(frozen=True, slots=True)
class OutlinedTable:
    """A table. `key` is its primary key, empty without one; `references` have one column each. `rows` is about how many
    it has, None if that is not known. `computed` columns are written by Postgres alone, `required` ones have neither a
    null nor a default. `choices` are the columns of an enum, with its values. `secured`: policies of its own decide who
    may write what. `tag` is that of its database, empty for the default one."""

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
    tag: str = ""

    @property
    def place(self) -> Place:
        return _place(self.tag, self.schema, self.name)

    @property
    def own_place(self) -> tuple[str, str]:
        """Its schema and name, as its database has them."""
        return self.schema, self.name

    @property
    def shown(self) -> str:
        """A name for comments."""
        name = self.name if self.schema == "public" and not self.tag else ".".join(self.place)
        return " ".join(name.split())

    @property
    def id_column(self) -> str | None:
        """The one column that identifies a row: the primary key's, or without a key the column `id`."""
        if self.key:
            return self.key[0] if len(self.key) == 1 else None
        return "id" if self.column("id") is not None else None

    def column(self, name: str) -> SourceColumn | None:
        return next((column for column in self.columns if column.name == name), None)

    def reference(self, column: str) -> Reference | None:
        """The first reference of a column."""
        return next((each for each in self.references if each.column == column), None)


def _place(tag: str, schema: str, name: str) -> Place:
    return (tag, schema, name) if tag else (schema, name)


def is_number(table: OutlinedTable, column: str) -> bool:
    """Whether the values of a column are numbers, which a token's text is compared with as text."""
    found = table.column(column)
    return found is not None and found.kind in {ValueKind.INTEGER, ValueKind.REAL}


def made_on_devices(table: OutlinedTable, column: str) -> bool:
    """Whether a device can make a value for a key, such as a uuid; a number is for Postgres to count."""
    found = table.column(column)
    return found is not None and _bare(found.type) in {"uuid", *_TEXTS}


def _bare(type_name: str) -> str:
    """The name of a type without its length."""
    return type_name.partition("(")[0]


def is_one_of_several(table: OutlinedTable, column: str) -> bool:
    """Whether a column without a foreign key is the id of one of several tables: with a type, kind or class beside it,
    as `owner_id` with `owner_type`."""
    if (reference := table.reference(column)) is not None and reference.declared:
        return False
    names = {snake(each.name) for each in table.columns}
    name = snake(column)
    return any(f"{stem}{end}" in names for stem in (name, _stem(name)) if stem for end in _TELLS)


def _stem(name: str) -> str:
    """What precedes the ending of an id; empty without one."""
    return next((name.removesuffix(end) for end in _ID if name.endswith(end)), "")


def with_references_by_name(tables: tuple[OutlinedTable, ...]) -> tuple[OutlinedTable, ...]:
    """The tables with references that only names show: `list_id` is the id of `list` or `lists`, of the table's own
    database if it has one."""
    called: dict[tuple[str, str], list[tuple[int, OutlinedTable]]] = {}
    for number, table in enumerate(tables):
        called.setdefault((table.schema, snake(table.name)), []).append((number, table))
    return tuple(replace(table, references=(*table.references, *_by_name(table, called))) for table in tables)


def _by_name(
    table: OutlinedTable, called: Mapping[tuple[str, str], Sequence[tuple[int, OutlinedTable]]]
) -> list[Reference]:
    """`called` are the tables with their places in the list, by schema and name."""
    found = []
    for column in table.columns:
        if table.reference(column.name) is not None or (column.name,) == table.key:
            continue
        stem = _stem(snake(column.name))
        if not stem or is_one_of_several(table, column.name):
            continue
        named = [each for name in plurals(stem) for each in called.get((table.schema, name), ())]
        for _, other in sorted(named, key=lambda each: (each[1].tag != table.tag, each[0])):
            key = other.id_column
            if other.name != table.name and key is not None and is_number(table, column.name) == is_number(other, key):
                found.append(Reference(column.name, other.schema, other.name, key, declared=False, tag=other.tag))
                break
    return found
