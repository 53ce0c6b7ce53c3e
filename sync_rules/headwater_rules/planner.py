"""One term of a query's condition, split into the row side, the lookups and the request side.

The request is the starting point: tables are placed one after another, each found by what the request and the
tables before it provide, until only the synced table is left; what it is compared with are its bucket parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headwater_rules.conditions import Atom, dependencies
from headwater_rules.errors import Code, Place, RuleError
from headwater_rules.fragment import REQUEST, Frag, Kind, Ref, build, to_expr
from headwater_rules.naming import expr_order
from headwater_rules.plan import Expr, FromLookup, FromRequest, Output, ParamSource, RowSource, Star, TablePattern
from headwater_rules.relations import Column, Context, Each, Everything, Selection, Table


@dataclass(frozen=True, slots=True)
class LookupDraft:
    """A lookup without its name, and what a request finds it by."""

    table: TablePattern
    filters: tuple[Expr, ...]
    each: tuple[Expr, ...]
    keys: tuple[Expr, ...]
    outputs: tuple[Expr, ...]
    sources: tuple[ParamSource, ...]


@dataclass(frozen=True, slots=True)
class VariantDraft:
    """A variant whose bucket and lookups have no names yet; stage i looks in `lookups[i]`."""

    row: RowSource
    gates: tuple[Expr, ...]
    lookups: tuple[LookupDraft, ...]
    params: tuple[tuple[ParamSource, ...], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The synced table of a query and what is selected from it."""

    table: int
    output_table: str | None
    columns: tuple[Column | Everything, ...]


def find_target(context: Context, selection: Selection, place: Place) -> Target:
    """The one table that all selected columns come from. Raises RuleError when there is none, or several."""
    owners: dict[int, Place] = {}
    for column in selection.columns:
        if isinstance(column, Everything):
            owners.setdefault(column.table, column.place)
            continue
        for source in column.value.sources:
            if source == REQUEST or isinstance(context.instances[context.owner(source)], Each):
                message = f"column `{column.name}` is a value of the request, which cannot be synced"
                raise RuleError(Code.SINGLE_TABLE, message, column.value.place, "select columns of the synced table")
            owners.setdefault(context.owner(source), column.value.place)
    tables = [number for number in sorted(selection.tables) if isinstance(context.instances[number], Table)]
    if not owners and len(tables) == 1:
        owners[tables[0]] = place
    if len(owners) != 1:
        message = "all selected columns must come from one table" if owners else "no column of a table is selected"
        raise RuleError(Code.SINGLE_TABLE, message, list(owners.values())[-1] if owners else place,
                        "sync the other table by a query of its own, under `queries`")  # fmt: skip
    number = next(iter(owners))
    table = context.instances[number]
    assert isinstance(table, Table)
    name = table.alias or (None if table.pattern.name.endswith("%") else table.pattern.name)
    return Target(number, name, selection.columns)


def plan_term(context: Context, target: Target, tables: frozenset[int], term: Sequence[Atom]) -> VariantDraft:
    """The variant that gives the rows for which every atom of `term` holds. `tables` are those of the whole query;
    atoms bring further ones. Raises RuleError for a condition that cannot be split."""
    joined = tables.union(*(atom.tables for atom in term))
    return _Term(context, target, joined).plan(term)


@dataclass(slots=True)
class _Link:
    """An equality between values of two different owners."""

    left: Frag
    right: Frag
    left_owner: int
    right_owner: int

    def side(self, owner: int) -> Frag | None:
        if owner == self.left_owner:
            return self.left
        return self.right if owner == self.right_owner else None

    def other(self, owner: int) -> tuple[Frag, int]:
        return (self.right, self.right_owner) if owner == self.left_owner else (self.left, self.left_owner)


@dataclass(slots=True)
class _Parts:
    """What one table contributes."""

    filters: list[Frag] = field(default_factory=list)
    arrays: list[int] = field(default_factory=list)


class _Term:
    def __init__(self, context: Context, target: Target, joined: frozenset[int]) -> None:
        self._context = context
        self._target = target
        self._parts: dict[int, _Parts] = {}
        self._request_arrays: dict[int, bool] = {}  # and whether a link has used it
        self._links: list[_Link] = []
        self._gates: list[Frag] = []
        for number in sorted(joined):
            owner = context.owner(number)
            if isinstance(context.instances[owner], Each):
                self._request_arrays[owner] = False
            else:
                parts = self._parts.setdefault(owner, _Parts())
                if owner != number:
                    parts.arrays.append(number)
        self._order_arrays()

    def plan(self, term: Sequence[Atom]) -> VariantDraft:
        for atom in term:
            self._classify(atom)
        stages = self._place_tables()
        provided = {table: stage for stage, table in enumerate(stages)}
        outputs = self._outputs(stages)
        lookups = tuple(self._lookup(table, provided, outputs) for table in stages)
        row_params = self._keyed(self._target.table, provided, outputs)
        for number, used in self._request_arrays.items():
            if not used:
                array = self._array(number)
                condition = build(Kind.CERTAIN, array.place, "EXISTS (SELECT 1 FROM json_each(", array, "))")
                self._gates.append(condition)
        return VariantDraft(
            self._row_source(tuple(row_params)),
            tuple(self._sorted(self._gates)),
            lookups,
            tuple(tuple(sources) for sources in row_params.values()),
        )

    # sorting atoms out

    def _classify(self, atom: Atom) -> None:
        owners = dependencies(atom.frag, self._context.owner)
        if not owners or owners == {REQUEST}:
            self._gates.append(atom.frag)
            return
        if len(owners) == 1:
            self._filter(next(iter(owners)), atom)
            return
        if atom.link is None:
            raise self._mixed(atom)
        sides = [dependencies(side, self._context.owner) for side in atom.link]
        if any(len(side) != 1 for side in sides):
            raise self._mixed(atom)
        left_owner, right_owner = (next(iter(side)) for side in sides)
        if {left_owner, right_owner} <= {REQUEST, *self._request_arrays}:
            raise self._array_filter(atom)
        self._links.append(_Link(*atom.link, left_owner, right_owner))

    def _filter(self, owner: int, atom: Atom) -> None:
        if owner in self._request_arrays:
            raise self._array_filter(atom)
        self._parts[owner].filters.append(atom.frag)

    def _array_filter(self, atom: Atom) -> RuleError:
        message = "a filter on the elements of an array of the request is not supported"
        return RuleError(Code.UNSUPPORTED, message, atom.place, "compare them with a column of a table")

    def _mixed(self, atom: Atom) -> RuleError:
        owners = dependencies(atom.frag, self._context.owner)
        what = "the request with a table" if REQUEST in owners and len(owners) == 2 else "several tables"
        return RuleError(
            Code.MIXED_FILTER,
            f"this condition combines {what} in another way than by `=`",
            atom.place,
            "connect them by `a = b` or `a IN (…)`, with the values of one side only on each side of it",
        )

    # the order of lookups

    def _place_tables(self) -> list[int]:
        """Tables beside the synced one, each after those that its key comes from. One that nothing leads to comes
        as a whole: it is looked up without a key."""
        waiting = [table for table in self._parts if table != self._target.table]
        known = {REQUEST, *self._request_arrays}
        placed: list[int] = []
        while waiting:
            reachable = [table for table in waiting if self._connected(table, known)]
            table = (reachable or waiting)[0]
            waiting.remove(table)
            placed.append(table)
            known.add(table)
        return placed

    def _connected(self, table: int, known: set[int]) -> bool:
        return any(link.side(table) is not None and link.other(table)[1] in known for link in self._links)

    def _outputs(self, stages: Sequence[int]) -> dict[int, tuple[Expr, ...]]:
        """Per looked-up table the values that later stages or the bucket parameters take from it."""
        order = {table: number for number, table in enumerate((*stages, self._target.table))}
        needed: dict[int, set[Expr]] = {table: set() for table in stages}
        for link in self._links:
            left, right = order.get(link.left_owner), order.get(link.right_owner)
            if left is None or right is None:
                continue
            giver, value = (link.left_owner, link.left) if left < right else (link.right_owner, link.right)
            needed[giver].add(self._expr(value))
        return {table: tuple(sorted(exprs, key=expr_order)) for table, exprs in needed.items()}

    def _lookup(self, table: int, provided: dict[int, int], outputs: dict[int, tuple[Expr, ...]]) -> LookupDraft:
        earlier = {other: stage for other, stage in provided.items() if stage < provided[table]}
        pairs = [(key, source) for key, sources in self._keyed(table, earlier, outputs).items() for source in sources]
        instance = self._context.instances[table]
        assert isinstance(instance, Table)
        return LookupDraft(
            instance.pattern,
            tuple(self._sorted(self._parts[table].filters)),
            self._arrays(table),
            tuple(key for key, _ in pairs),
            outputs[table],
            tuple(source for _, source in pairs),
        )

    def _keyed(
        self, table: int, provided: dict[int, int], outputs: dict[int, tuple[Expr, ...]]
    ) -> dict[Expr, list[ParamSource]]:
        """Values of `table` and where those they have to equal come from, in an order of their own."""
        keys: dict[Expr, list[ParamSource]] = {}
        for link in self._links:
            own = link.side(table)
            if own is None:
                continue
            source = self._source(*link.other(table), provided, outputs)
            if source is not None:
                sources = keys.setdefault(self._expr(own), [])
                if source not in sources:
                    sources.append(source)
        return {key: sorted(keys[key], key=repr) for key in sorted(keys, key=expr_order)}

    def _source(
        self, value: Frag, owner: int, provided: dict[int, int], outputs: dict[int, tuple[Expr, ...]]
    ) -> ParamSource | None:
        if owner == REQUEST:
            return FromRequest(self._expr(value))
        if owner in self._request_arrays:
            if self._request_arrays[owner] or value.ref is None:
                message = "the elements of an array of the request can be compared with one column only, as they are"
                raise RuleError(Code.UNSUPPORTED, message, value.place)
            self._request_arrays[owner] = True
            return FromRequest(self._expr(self._array(owner)), each=True)
        if owner not in provided:
            return None
        return FromLookup(provided[owner], outputs[owner].index(self._expr(value)))

    # the row side

    def _row_source(self, params: tuple[Expr, ...]) -> RowSource:
        table = self._context.instances[self._target.table]
        assert isinstance(table, Table)
        return RowSource(
            table.pattern,
            self._target.output_table,
            tuple(self._sorted(self._parts[self._target.table].filters)),
            self._arrays(self._target.table),
            params,
            tuple(
                Star() if isinstance(column, Everything) else Output(column.name, self._expr(column.value))
                for column in self._target.columns
            ),
        )

    def _arrays(self, table: int) -> tuple[Expr, ...]:
        return tuple(self._expr(self._array(number)) for number in self._parts[table].arrays)

    def _order_arrays(self) -> None:
        for parts in self._parts.values():
            parts.arrays.sort(key=lambda number: (expr_order(self._expr(self._array(number))), number))

    def _array(self, number: int) -> Frag:
        instance = self._context.instances[number]
        assert isinstance(instance, Each)
        return instance.array

    def _sorted(self, frags: Sequence[Frag]) -> list[Expr]:
        return sorted({self._expr(frag) for frag in frags}, key=expr_order)

    def _expr(self, frag: Frag) -> Expr:
        return to_expr(frag, self._input)

    def _input(self, ref: Ref) -> str:
        if ref.table == REQUEST or not isinstance(self._context.instances[ref.table], Each):
            return ref.column
        owner = self._context.owner(ref.table)
        return f"\x00each:{self._parts[owner].arrays.index(ref.table)}"
