"""Rows of other tables that a row is evaluated with: absence, left joins, and columns of a joined row.

Which rows are synced to whom is found by values that requests and rows share. What is the same for everybody needs no
request: `NOT EXISTS (SELECT … WHERE a.id = t.id)` is a condition on `t` alone, once it is known whether there is such a
row. So a reference to the other row becomes a reference to a value of the row itself, which a `RowJoin` finds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from headwater_rules.compiler.clock import elsewhere, moving
from headwater_rules.compiler.fragment import REQUEST, ExprKind, Frag, Ref, build, to_expr, truth
from headwater_rules.compiler.relations import Atom, Condition, ExpandedArray, TableRef, dependencies, terms
from headwater_rules.errors import RuleCode, RuleError
from headwater_rules.evaluate.naming import expr_order
from headwater_rules.plan import Expr, LookupDefinition, RowJoin, TablePattern, joined_input, joined_output
from headwater_rules.text.sqltext import unsupported, warning_at

Instances = Sequence[TableRef | ExpandedArray]
Owner = Callable[[int], int]

_DRAFT = "\x00joining:"
_THERE = ""
_ID = "id"
_DIGITS = 12
_SAME_FOR_ALL = "a row may depend on rows of another table that are the same for all users"


@dataclass(slots=True)
class JoinDraft:
    """A join of rows of the table `owner` to rows of the table `table`, both by their numbers in the query. `keys` are
    pairs of equal values, the owner's first; `columns` are those of the other table whose values are used, _THERE for
    whether there is a row."""

    table: int
    owner: int
    keys: tuple[tuple[Frag, Frag], ...]
    filters: tuple[Frag, ...]
    columns: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DraftedJoin:
    """A join, of which the lookup has no name yet, and its index. There is none without keys."""

    join: RowJoin
    index: LookupDefinition | None

    @property
    def lookup(self) -> LookupDefinition:
        return self.join.lookup


@dataclass(frozen=True, slots=True)
class RowJoins:
    """The joins of one query. `instances` are its tables and arrays, by number, and `owner` tells to which of them a
    value belongs. `drafted` has the joins in the plan's form, by name."""

    instances: Instances
    owner: Owner
    drafts: list[JoinDraft]
    drafted: dict[str, DraftedJoin]

    def add(self, draft: JoinDraft) -> int:
        """Add a join, and return its number."""
        self.drafts.append(draft)
        return len(self.drafts) - 1

    def there(self, number: int, node: exp.Expr) -> Frag:
        """1 if the join finds a row, else 0."""
        return build(ExprKind.CERTAIN, node, "(", self._value(number, _THERE, node), " IS NOT NULL)")

    def by_id(self, number: int) -> bool:
        """Whether rows are joined by a column `id`, which is taken for unique within a table."""
        table = self._pattern(self.drafts[number].table)
        if table.schema.endswith("%") or table.name.endswith("%"):
            return False
        return any(inner.ref is not None and inner.ref.column == _ID for _, inner in self.drafts[number].keys)

    def is_absence(self, number: int, frag: Frag) -> bool:
        """Whether a condition says that a join finds no row: a column is null that no joined row has null."""
        ref = frag.parts[1] if len(frag.parts) == 3 and frag.parts[::2] == ("(", " IS NULL)") else None
        draft = self.drafts[number]
        never = {inner.ref.column for _, inner in draft.keys if inner.ref is not None} | {_ID}
        return isinstance(ref, Ref) and ref.table == draft.table and ref.column in never

    def replaced(self, frag: Frag, number: int) -> Frag:
        """A fragment with the values of the joined table taken from the row that the join finds."""
        draft = self.drafts[number]
        parts = (
            self._ref(number, part.column) if isinstance(part, Ref) and part.table == draft.table else part
            for part in frag.parts
        )
        return replace(frag, parts=tuple(parts))

    def of_row(self, frag: Frag, owner: int) -> list[JoinDraft]:
        """The joins of a table's rows that a value is of."""
        columns = {part.column for part in frag.parts if isinstance(part, Ref) and part.table == owner}
        found = sorted(int(each.removeprefix(_DRAFT).partition(":")[0]) for each in columns if each.startswith(_DRAFT))
        return [self.drafts[number] for number in found]

    def owners(self, frag: Frag) -> frozenset[int]:
        """The tables that a value is of."""
        return dependencies(frag, self.owner)

    def _value(self, number: int, column: str, node: exp.Expr) -> Frag:
        return Frag((self._ref(number, column),), ExprKind.ANY, node)

    def _ref(self, number: int, column: str) -> Ref:
        draft = self.drafts[number]
        if column not in draft.columns:
            draft.columns.append(column)
        return Ref(draft.owner, f"{_DRAFT}{number}:{column}")

    # reading ON and WHERE

    def found(self, table: int, condition: Condition, node: exp.Expr, *others: tuple[Frag, Frag]) -> list[list[Atom]]:
        """The alternatives of the condition of a join to `table`, with further equalities."""
        more = [Atom(truth(build(ExprKind.LOGICAL, node, "(", a, " = ", b, ")")), (a, b)) for a, b in others]
        return [[*term, *more] for term in terms(condition, self.owner, node)]

    def join(
        self, table: int, term: Iterable[Atom], node: exp.Expr, owner: int | None = None
    ) -> tuple[int, list[Frag]]:
        """A join to `table` by conditions that all have to hold, and those of them that are about the row itself.
        Raises RuleError for conditions that no join can be found by."""
        keys: list[tuple[Frag, Frag]] = []
        filters: list[Frag] = []
        own: list[Frag] = []
        for atom in term:
            owners = dependencies(atom.frag, self.owner)
            if moving(atom.frag):
                raise elsewhere(atom.node)
            if atom.absence is not None:
                raise unsupported("this compares with the request within another NOT EXISTS", atom.node, _SAME_FOR_ALL)
            if any(map(self._is_array, atom.frag.sources)):
                raise unsupported("an element of an array can't be compared here", atom.node, "compare columns")
            if atom.tables - {table}:
                raise unsupported("a subquery here reads another table", atom.node, "read one table in it")
            if REQUEST in owners:
                message = "this condition compares with the request, so other users have other rows here"
                raise unsupported(message, atom.node, f"{_SAME_FOR_ALL}, such as archived or blocked ones")
            if owners <= {table}:
                filters.append(atom.frag)
            elif table not in owners:
                own.append(atom.frag)
            elif atom.link is not None:
                keys.append(self._key(table, atom.link, atom.node))
            else:
                raise unsupported("rows of two tables can be joined only by `=` here", atom.node, "write `a.x = b.x`")
        values = [outer for outer, _ in keys] + own
        owners = frozenset[int]().union(*(dependencies(value, self.owner) for value in values))
        owners |= frozenset() if owner is None else {owner}
        if len(owners) != 1:
            what = "several tables" if owners else "no other table"
            raise unsupported(f"this compares with {what}", node, "compare with columns of one table: `a.x = t.x`")
        (found,) = owners
        self._check_tags(table, found, node)
        self._check_plain(values, node)
        return self.add(JoinDraft(table, found, tuple(keys), tuple(filters))), own

    def _key(self, table: int, link: tuple[Frag, Frag], node: exp.Expr) -> tuple[Frag, Frag]:
        left, right = link
        for outer, inner in ((left, right), (right, left)):
            if dependencies(inner, self.owner) == {table} and table not in dependencies(outer, self.owner):
                return outer, inner
        raise unsupported("this mixes values of two tables on one side", node, "write `a.x = b.x`")

    def _check_tags(self, table: int, owner: int, node: exp.Expr) -> None:
        there, here = self._pattern(table), self._pattern(owner)
        if there.tag != here.tag or there.tag.endswith("%"):
            raise unsupported("rows of two databases can't be joined here", node, "copy the table into one of them")

    def _check_plain(self, values: Iterable[Frag], node: exp.Expr) -> None:
        if any(isinstance(part, Ref) and part.column.startswith(_DRAFT) for value in values for part in value.parts):
            raise unsupported("this compares with a row that is joined itself", node, "compare with columns of the row")

    def _is_array(self, number: int) -> bool:
        return number != REQUEST and isinstance(self.instances[number], ExpandedArray)

    def _pattern(self, number: int) -> TablePattern:
        instance = self.instances[number]
        assert isinstance(instance, TableRef)
        return instance.pattern

    # the plan's form

    def input(self, column: str) -> str:
        """The input that a reference of a row means."""
        if not column.startswith(_DRAFT):
            return column
        number, _, name = column.removeprefix(_DRAFT).partition(":")
        draft = self.drafts[int(number)]
        drafted = self._draft(draft)
        return joined_input(drafted.join.name, sorted(draft.columns).index(name))

    def used(self, exprs: Iterable[Expr]) -> tuple[DraftedJoin, ...]:
        """The joins that expressions use, and those that these use."""
        found: dict[str, DraftedJoin] = {}
        waiting = list(exprs)
        while waiting:
            for name in waiting.pop().inputs:
                output = joined_output(name)
                if output is not None and output[0] not in found:
                    drafted = found[output[0]] = self.drafted[output[0]]
                    waiting += drafted.lookup.exprs()
        return tuple(found.values())

    def _draft(self, draft: JoinDraft) -> DraftedJoin:
        pairs = sorted({(self._expr(inner), self._expr(outer)) for outer, inner in draft.keys}, key=_pair_order)
        keys = tuple(outer for _, outer in pairs)
        columns = sorted(draft.columns)
        there, here = self._pattern(draft.table), self._pattern(draft.owner)
        outputs = () if columns == [_THERE] else tuple(map(self._output, columns))
        filters = tuple(sorted({self._expr(each) for each in draft.filters}, key=expr_order))
        lookup = LookupDefinition("", "", there, filters, (), tuple(inner for inner, _ in pairs), outputs)
        name = _name(here, keys, lookup)
        if name not in self.drafted:
            index = LookupDefinition("", "", here, (), (), keys, ()) if keys else None
            self.drafted[name] = DraftedJoin(RowJoin(name, here, keys, lookup, ""), index)
        return self.drafted[name]

    def _output(self, column: str) -> Expr:
        """A column as a SQL literal, so that nulls and blobs, which no lookup can give, come through."""
        return Expr("quote(?1)", (self.input(column),)) if column else Expr("'1'", ())

    def _expr(self, frag: Frag) -> Expr:
        return to_expr(frag, lambda ref: self.input(ref.column))


def _pair_order(pair: tuple[Expr, Expr]) -> tuple[object, ...]:
    return expr_order(pair[0]), expr_order(pair[1])


def _name(table: TablePattern, keys: tuple[Expr, ...], lookup: LookupDefinition) -> str:
    parts = [
        (table.tag, table.schema, table.name),
        (lookup.table.tag, lookup.table.schema, lookup.table.name),
        *([(e.sql, *e.inputs) for e in exprs] for exprs in (keys, lookup.filters, lookup.keys, lookup.outputs)),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:_DIGITS]


# optional rows


def one_of_several(table: TableRef, node: exp.Expr) -> RuleError:
    """The warning for values of a joined row where several may be joined."""
    message = f"values of one row of `{table.pattern.name}` are used, also where several are joined"
    hint = "join by its `id`, or by another column that has a unique index"
    return warning_at(RuleCode.ONE_OF_SEVERAL, message, node, hint)


def optional_row(joins: RowJoins, table: int, on: Condition, node: exp.Expr) -> int:
    """The join that finds the row of a left join. Raises RuleError where it can't be found without a request."""
    alternatives = joins.found(table, on, node)
    if len(alternatives) != 1:
        raise unsupported("the ON of this left join has alternatives", node, "join by `a.x = b.x`")
    number, own = joins.join(table, alternatives[0], node)
    if own:
        raise unsupported("the ON of this left join has a condition on the row itself", node, "write it in WHERE")
    return number
