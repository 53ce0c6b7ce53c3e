"""The tables, columns and conditions of a flattened query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from sqlglot import exp

from headwater_rules.compiler.fragment import ExprKind, Frag, joined
from headwater_rules.compiler.trust import Trust, any_of, every
from headwater_rules.errors import RuleCode
from headwater_rules.plan import TablePattern
from headwater_rules.text.sqltext import error_at, unsupported

MAX_TERMS = 100


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """One condition with the value 0 or 1. `link` holds both sides if it is an equality; `tables` are further tables
    that have to be joined for it. `absence` is what it stands for until all is known that holds with it."""

    frag: Frag
    link: tuple[Frag, Frag] | None = None
    tables: frozenset[int] = frozenset()
    absence: Absence | None = None

    @property
    def node(self) -> exp.Expr:
        return self.frag.node


@dataclass(frozen=True, slots=True)
class All:
    items: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Either:
    items: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Absence:
    """That no row of `tables` meets a condition; with `pair`, nor has the second value equal to the first, which is
    from outside."""

    tables: frozenset[int]
    condition: Condition
    node: exp.Expr
    pair: tuple[Frag, Frag] | None = None


Condition = Atom | All | Either
Owner = Callable[[int], int]
"""The table or request that a number in a fragment belongs to. An expanded array belongs to its table."""


def terms(condition: Condition, owner: Owner, node: exp.Expr) -> list[list[Atom]]:
    """The alternatives of a condition: it holds if all atoms of any list hold. Conditions on a single source stay one
    atom, so that `a OR b` on the same row is one term. Raises RuleError for more than MAX_TERMS."""
    return [list(dict.fromkeys(term)) for term in _expand(_gather(condition, owner), node)]


def dependencies(frag: Frag, owner: Owner) -> frozenset[int]:
    return frozenset(owner(source) for source in frag.sources)


def atoms_of(condition: Condition) -> list[Atom]:
    """All atoms of a condition."""
    if isinstance(condition, Atom):
        return [condition]
    return [atom for item in condition.items for atom in atoms_of(item)]


def _expand(condition: Condition, node: exp.Expr) -> list[tuple[Atom, ...]]:
    match condition:
        case Atom():
            return [(condition,)]
        case Either(items):
            expanded = [term for item in items for term in _expand(item, node)]
            bound_terms(len(expanded), node)
            return expanded
        case All(items):
            sides = [_expand(item, node) for item in items]
            size = 1
            for side in sides:
                size *= len(side)
                bound_terms(size, node)
            return [tuple(atom for part in choice for atom in part) for choice in product(*sides)]


def bound_terms(size: int, node: exp.Expr) -> None:
    """Raise RuleError for more than MAX_TERMS alternatives."""
    if size > MAX_TERMS:
        message = f"the condition has more than {MAX_TERMS} combinations of AND and OR"
        raise error_at(RuleCode.TOO_MANY, message, node, "split the query, or compare with a list: `x IN (…)`")


def _gather(condition: Condition, owner: Owner) -> Condition:
    """Merge the conditions on a single source within each OR."""
    match condition:
        case Atom():
            return condition
        case All(items):
            return All(tuple(_gather(item, owner) for item in items))
        case Either(items):
            return _merged([_gather(item, owner) for item in items], owner)


def _merged(items: list[Condition], owner: Owner) -> Condition:
    groups: dict[frozenset[int], list[Atom]] = {}
    result: list[Condition | frozenset[int]] = []
    for item in items:
        atom = _as_filter(item, owner)
        if atom is None:
            result.append(item)
            continue
        key = dependencies(atom.frag, owner)
        if key not in groups:
            result.append(key)
        groups.setdefault(key, []).append(atom)
    merged = tuple(_combined(groups[item], " OR ", any_of) if isinstance(item, frozenset) else item for item in result)
    return merged[0] if len(merged) == 1 else Either(merged)


def _as_filter(condition: Condition, owner: Owner) -> Atom | None:
    """The whole condition as one atom, if it depends on a single source and joins nothing."""
    if isinstance(condition, Either):
        return None  # gathered already: mergeable conditions are atoms by now
    atoms = _atoms(condition)
    if not atoms:
        return None
    sources = frozenset[int]().union(*(dependencies(atom.frag, owner) for atom in atoms))
    # an array expanded for one alternative would need elements for the other alternatives to hold
    joins = frozenset[int]().union(*(atom.tables for atom in atoms))
    return None if len(sources) > 1 or not joins <= sources else _combined(atoms, " AND ", every)


def _atoms(condition: Condition) -> list[Atom] | None:
    """The atoms that all have to hold; None if some are alternatives."""
    match condition:
        case Atom(absence=Absence()):
            return None
        case Atom():
            return [condition]
        case All(items):
            parts = [_atoms(item) for item in items]
            found = [part for part in parts if part is not None]
            return [atom for part in found for atom in part] if len(found) == len(parts) else None
        case Either():
            return None


def _combined(atoms: list[Atom], between: str, trusted: Callable[[list[Trust]], Trust]) -> Atom:
    if len(atoms) == 1:
        return atoms[0]
    trust = trusted([atom.frag.trust for atom in atoms])
    frag = joined(ExprKind.CERTAIN, atoms[0].node, [atom.frag for atom in atoms], between, trust)
    return Atom(frag, tables=frozenset[int]().union(*(atom.tables for atom in atoms)))


@dataclass(frozen=True, slots=True)
class TableRef:
    """One use of a source table."""

    pattern: TablePattern
    alias: str | None
    alias_quoted: bool
    node: exp.Expr


@dataclass(frozen=True, slots=True)
class ExpandedArray:
    """The elements of a JSON array, as a table with the columns `value` and `key`."""

    array: Frag

    @property
    def node(self) -> exp.Expr:
        return self.array.node


@dataclass(frozen=True, slots=True)
class SelectedStar:
    """`*`: all columns of a table."""

    table: int
    node: exp.Expr


@dataclass(frozen=True, slots=True)
class SelectedColumn:
    """A selected value and its name."""

    name: str
    value: Frag

    @property
    def node(self) -> exp.Expr:
        return self.value.node


@dataclass(frozen=True, slots=True)
class Selection:
    """A flattened SELECT. `tables` are the numbers of all tables that it joins."""

    columns: tuple[SelectedColumn | SelectedStar, ...]
    condition: Condition
    tables: frozenset[int]

    def named(self) -> dict[str, Frag]:
        """The columns of a subquery by name. Raises RuleError for `*`, whose columns are unknown, and for duplicate
        names."""
        columns: dict[str, Frag] = {}
        for column in self.columns:
            if isinstance(column, SelectedStar):
                message = "`*` is not supported in a subquery or a `with` query"
                raise unsupported(message, column.node, "name the columns")
            if column.name in columns:
                message = f"two columns of this subquery are called `{column.name}`"
                raise error_at(RuleCode.UNKNOWN_NAME, message, column.node, "give one of them another name")
            columns[column.name] = column.value
        return columns


Relation = int | dict[str, Frag]
"""What a name in FROM refers to: a table by its number, or the columns of a derived table."""
