"""`NOT EXISTS` and `NOT IN (SELECT …)`: that there is no row is found with the row itself, so it has to be the same for
everybody who gets the row.

What compares with the request differs between users. But where the same condition demands that a column equals that
value of the request, the column can stand for it: who gets the row has that value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from headwater_rules.compiler.fragment import REQUEST, ExprKind, Frag, Ref, build, equal, joined, negated, truth
from headwater_rules.compiler.relations import (
    Absence,
    All,
    Atom,
    Condition,
    ExpandedArray,
    atoms_of,
    dependencies,
)
from headwater_rules.compiler.row_joins import RowJoins
from headwater_rules.text.sqltext import unsupported

Parts = tuple[str | Ref, ...]


def absent(joins: RowJoins, selected: Absence) -> Condition:
    """The condition that there is no such row: `NOT EXISTS`, or with a pair, whose values are compared, `NOT IN`, which
    is null, and so false, where a null is compared with any row. For one that compares with the request, an atom stands
    until it is known what else holds: see `settled`. Raises RuleError."""
    pair, frags = selected.pair or (), [atom.frag for atom in atoms_of(selected.condition)]
    if not any(REQUEST in dependencies(frag, joins.owner) for frag in (*pair[:1], *frags)):
        return _absent(joins, selected)
    pieces = [piece for frag in (*pair, *frags) for piece in (frag, " AND ")]  # for what the absence depends on
    return Atom(build(ExprKind.CERTAIN, selected.node, "(", *pieces, "1)"), absence=selected)


def _absent(joins: RowJoins, selected: Absence) -> Condition:
    node, pair = selected.node, selected.pair
    numbers = sorted(selected.tables)
    if len(numbers) != 1:
        what = "more than one table, or an array" if numbers else "no table"
        raise unsupported(f"a subquery that must give no row reads {what}", node, "read one table in it")
    (table,) = numbers
    links = () if pair is None else (pair,)
    alternatives = joins.found(table, selected.condition, node, *links)
    conditions: list[Condition] = []
    for term in alternatives:
        number, own = joins.join(table, term, node)
        conditions.append(Atom(negated(_all([*own, joins.there(number, node)], node))))
        if pair is not None:
            conditions += _without_null(joins, table, term[:-1], pair, node)
    return All(tuple(conditions))


def _without_null(
    joins: RowJoins, table: int, term: Sequence[Atom], pair: tuple[Frag, Frag], node: exp.Expr
) -> list[Condition]:
    """What else `x NOT IN (SELECT y …)` asks for: no y is null, and x is not, unless there is no row."""
    left, right = pair
    owners = joins.owners(left)
    if len(owners) != 1:
        raise unsupported("this compares with values of no or several rows", node, "compare with a column of the row")
    (owner,) = owners
    is_null = Atom(build(ExprKind.CERTAIN, node, "(", right, " IS NULL)"))
    nulls, own = joins.join(table, [*term, is_null], node, owner)
    any_row, _ = joins.join(table, term, node, owner)
    unknown = build(ExprKind.CERTAIN, node, "(", left, " IS NULL)")
    return [
        Atom(negated(_all([*own, joins.there(nulls, node)], node))),
        Atom(negated(_all([*own, unknown, joins.there(any_row, node)], node))),
    ]


def _all(frags: Sequence[Frag], node: exp.Expr) -> Frag:
    return frags[0] if len(frags) == 1 else joined(ExprKind.CERTAIN, node, [truth(each) for each in frags], " AND ")


# values of the request


def settled(joins: RowJoins, term: Sequence[Atom], first: int) -> list[Atom]:
    """The atoms of a term, with columns in place of the values of the request that absences compare with: those of the
    table `first`, or of another one, that other atoms demand to be equal. Raises RuleError where there are none."""
    known = [atom for atom in term if atom.absence is None]
    found = list(known)
    for atom in term:
        if atom.absence is not None:
            found += _settled(joins, atom.absence, _Equal(joins, known), first)
    return found


def _settled(joins: RowJoins, selected: Absence, same: _Equal, first: int) -> list[Atom]:
    inner = selected.tables
    outer = {value.parts: value for value in _outer(joins, selected)}
    choices = [same.of(value) for value in outer.values()]
    tables = set(choices[0]).intersection(*choices[1:]) if choices else set[int]()
    if not tables:
        message = "this condition compares with the request, so other users have other rows here"
        hint = "also compare a column of the row, or of a row that it is found by, with the same value by `=`"
        raise unsupported(message, selected.node, hint)
    table = first if first in tables else min(tables)
    values = {parts: choice[table] for parts, choice in zip(outer, choices, strict=True)}

    def replaced(atom: Atom) -> Atom:
        if atom.link is None or dependencies(atom.frag, joins.owner) <= inner:
            return atom
        left, right = (values.get(side.parts, side) for side in atom.link)
        return Atom(truth(equal(left, right, atom.node)), (left, right), atom.tables)

    pair = selected.pair
    if pair is not None:
        pair = values.get(pair[0].parts, pair[0]), pair[1]
    condition = _mapped(selected.condition, replaced)
    return atoms_of(_absent(joins, replace(selected, condition=condition, pair=pair)))


def _outer(joins: RowJoins, selected: Absence) -> Iterator[Frag]:
    """The values from outside that the rows of an absence are compared with by `=`."""
    if selected.pair is not None:
        yield selected.pair[0]
    for atom in atoms_of(selected.condition):
        for side in atom.link or ():
            owners = dependencies(side, joins.owner)
            if owners and not owners & selected.tables:
                yield side


def _mapped(condition: Condition, change: Callable[[Atom], Atom]) -> Condition:
    if isinstance(condition, Atom):
        return change(condition)
    return type(condition)(tuple(_mapped(item, change) for item in condition.items))


class _Equal:
    """What is equal where all atoms of a term hold."""

    def __init__(self, joins: RowJoins, term: Iterable[Atom]) -> None:
        self._joins = joins
        self._groups: list[dict[Parts, Frag]] = []
        for link in (atom.link for atom in term if atom.link is not None):
            if not any(map(self._is_element, link)):
                self._add(link)

    def _is_element(self, frag: Frag) -> bool:
        """Whether a value is of an array: another element of it may be meant."""
        tables = frag.sources - {REQUEST}
        return any(isinstance(self._joins.instances[number], ExpandedArray) for number in tables)

    def _add(self, link: tuple[Frag, Frag]) -> None:
        group = {side.parts: side for side in link}
        for other in [each for each in self._groups if each.keys() & group.keys()]:
            self._groups.remove(other)
            group |= other
        self._groups.append(group)

    def of(self, value: Frag) -> Mapping[int, Frag]:
        """By table, a value of its rows that equals this one."""
        group = next((each for each in self._groups if value.parts in each), {value.parts: value})
        found: dict[int, Frag] = {}
        for frag in group.values():
            owners = dependencies(frag, self._joins.owner)
            if len(owners) == 1 and REQUEST not in owners and not self._is_element(frag):
                found.setdefault(next(iter(owners)), frag)
        return found
