"""Splits one term of a query's condition into the row side, the lookups and the request side.

Planning starts at the request: tables are added one after another, each found by values of the request and of the
tables before it, until only the synced table is left. The values that it is compared with are its bucket parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from headwater_rules.compiler.absence import settled
from headwater_rules.compiler.clock import elsewhere, moving
from headwater_rules.compiler.fragment import REQUEST, ExprKind, Frag, Ref, build, to_expr
from headwater_rules.compiler.names import Context
from headwater_rules.compiler.relations import (
    Atom,
    Condition,
    ExpandedArray,
    SelectedColumn,
    SelectedStar,
    Selection,
    TableRef,
    dependencies,
)
from headwater_rules.compiler.row_joins import DraftedJoin, one_of_several
from headwater_rules.compiler.trust import TokenProof, Trust, element
from headwater_rules.errors import EvaluationError, RuleCode, RuleError
from headwater_rules.evaluate.engine import small_engine
from headwater_rules.evaluate.naming import expr_order
from headwater_rules.plan import (
    Expr,
    FromRequest,
    FromStage,
    LookupDefinition,
    Output,
    ParamSource,
    RequestInput,
    RequestStage,
    RowSource,
    Star,
    Value,
    element_input,
    found_input,
)
from headwater_rules.text.sqltext import error_at

_SAMPLES: tuple[Value, ...] = (None, 0, 1, -1, 2.5, "", "a", "B", "1", "[]", "{}", "2020-01-31", b"")
_WRITTEN = re.compile(r"'((?:[^']|'')*)'|\b(\d+(?:\.\d+)?)\b")


def samples(test: Expr) -> tuple[Value, ...]:
    """Values to try, among them those that the condition names."""
    written = [text.replace("''", "'") if text or not number else float(number)
               for text, number in _WRITTEN.findall(test.sql)]  # fmt: skip
    return (*_SAMPLES, *written)


def holds(test: Expr, values: Sequence[Value]) -> bool:
    """Whether a condition is true of these values of its inputs."""
    try:
        return bool(small_engine().rows(f"SELECT {test.sql}", list(values))[0][0])
    except EvaluationError:
        return False


def every_user_passes(gate: Expr) -> bool:
    """Whether a condition on the request asks for nothing but the user's id and is true of all that were tried. A token
    always has one."""
    if not {*gate.inputs} <= {RequestInput.USER_ID.value}:
        return False
    users = [value for value in samples(gate) if isinstance(value, str) and value] if gate.inputs else [""]
    return all(holds(gate, [user] * len(gate.inputs)) for user in users)


@dataclass(frozen=True, slots=True)
class DraftedStage:
    """A `LookupStage` whose lookup has no name yet."""

    lookup: LookupDefinition
    keys: tuple[ParamSource, ...]
    filters: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class VariantDraft:
    """A variant whose bucket and lookups have no names yet. Its first stage is `arrays`, if rows are made from the
    request; each of `lookups` is a further stage. `dangerous`: values of the client decide, whatever the token says."""

    row: RowSource
    gates: tuple[Expr, ...]
    arrays: RequestStage | None
    lookups: tuple[DraftedStage, ...]
    params: tuple[tuple[ParamSource, ...], ...]
    dangerous: bool
    joins: tuple[DraftedJoin, ...] = ()

    def requested(self) -> list[FromRequest]:
        """The request values that lead to lookups and buckets."""
        sources = [source for group in self.params for source in group]
        sources += [source for stage in self.lookups for source in stage.keys]
        return [source for source in sources if isinstance(source, FromRequest)]

    def compares(self) -> bool:
        """Whether values of the request lead to anything, or rows are compared with them."""
        compared = any(name in _REQUESTED for each in self.lookups for expr in each.filters for name in expr.inputs)
        return compared or self.arrays is not None or bool(self.requested())


@dataclass(frozen=True, slots=True)
class QueryTarget:
    """The synced table of a query, and the columns selected from it."""

    table: int
    output_table: str | None
    columns: tuple[SelectedColumn | SelectedStar, ...]


def find_target(context: Context, selection: Selection, node: exp.Expr) -> QueryTarget:
    """The table whose rows are synced: the one that all selected columns come from; of several the one whose `*` or
    `id` is selected. Raises RuleError when there is none, and for columns that are not values of a row."""
    owners: dict[int, exp.Expr] = {}
    foreign = [error for column in selection.columns if (error := _foreign(context, column)) is not None]
    for error in foreign[:-1]:
        context.report.add(error)
    if foreign:
        raise foreign[-1]
    for column in selection.columns:
        if isinstance(column, SelectedStar):
            owners.setdefault(column.table, column.node)
            continue
        for source in column.value.sources:
            owners.setdefault(context.owner(source), column.value.node)
    tables = [number for number in sorted(selection.tables) if isinstance(context.instances[number], TableRef)]
    if not owners and len(tables) == 1:
        owners[tables[0]] = node
    if not owners:
        hint = "sync the other table by a query of its own, under `queries`"
        raise error_at(RuleCode.SINGLE_TABLE, "no column of a table is selected", node, hint)
    number = next(iter(owners)) if len(owners) == 1 else _synced(context, selection, owners)
    table = context.table_at(number)
    name = table.alias or (None if table.pattern.name.endswith("%") else table.pattern.name)
    return QueryTarget(number, name, selection.columns)


def _synced(context: Context, selection: Selection, owners: Mapping[int, exp.Expr]) -> int:
    """The table whose rows are synced, of those that have selected columns."""
    stars = [column for column in selection.columns if isinstance(column, SelectedStar)]
    whole = {column.table for column in stars}
    named = {
        context.owner(source)
        for column in selection.columns
        if isinstance(column, SelectedColumn) and column.name == "id" and len(column.value.sources) == 1
        for source in column.value.sources
    }
    found = whole or named
    if len(found) == 1:
        return next(iter(found))
    message = "columns of several tables are selected, and it is not clear whose rows are synced"
    where = stars[-1].node if len(whole) > 1 else list(owners.values())[-1]
    hint = "select `*` or `id` of the synced table, and of the others columns by name, joined by `a.x = b.id`"
    raise error_at(RuleCode.SINGLE_TABLE, message, where, hint)


def _foreign(context: Context, column: SelectedColumn | SelectedStar) -> RuleError | None:
    """The error for a selected value that is not a row's: of the request, or of an array's elements. A device has a row
    once, however many of its elements pass."""
    if isinstance(column, SelectedStar):
        return None
    arrays = [context.instances[source] for source in column.value.sources - {REQUEST}]
    elements = [instance for instance in arrays if isinstance(instance, ExpandedArray)]
    if moving(column.value) or any(moving(instance.array) for instance in elements):
        return elsewhere(column.node)
    hint = "select columns of the synced table"
    if REQUEST in column.value.sources or any(REQUEST in instance.array.sources for instance in elements):
        message = f"column `{column.name}` is a value of the request, which cannot be synced"
    elif elements:
        message = f"column `{column.name}` has values of `json_each`, which cannot be selected: a row is synced once"
        hint = "select the array, and expand it in the device's own query"
    else:
        return None
    return error_at(RuleCode.SINGLE_TABLE, message, column.node, hint)


def plan_term(context: Context, target: QueryTarget, tables: frozenset[int], term: Sequence[Atom]) -> VariantDraft:
    """The variant for the rows for which every atom of `term` holds. `tables` are those of the whole query; atoms may
    add further ones. Raises RuleError for a condition that can't be split."""
    joined = tables.union(*(atom.tables for atom in term))
    columns, atoms, gone = _with_joined(context, target, settled(context.joins, term, target.table))
    return _Term(context, replace(target, columns=columns), joined - gone).plan(atoms)


def _with_joined(
    context: Context, target: QueryTarget, term: Sequence[Atom]
) -> tuple[tuple[SelectedColumn | SelectedStar, ...], list[Atom], set[int]]:
    """The selected columns and the conditions, with values of other tables taken from joined rows where a row needs
    them, and the tables that need not be looked up any more: where nothing else leads to a joined row, it is enough
    that there is one."""
    columns, atoms, gone = list(target.columns), list(term), set[int]()
    selected = {owner for column in columns for owner in _owners(context, column)} - {target.table}
    mixed = {atom: dependencies(atom.frag, context.owner) for atom in atoms if atom.link is None}
    compared = {owner for owners in mixed.values() if len(owners) == 2 and target.table in owners for owner in owners}
    tables = {number for number in compared - {REQUEST} if isinstance(context.instances[number], TableRef)}
    for table in sorted(selected | tables - {target.table}):
        pair = frozenset({table, target.table})
        about = [atom for atom in atoms if table in dependencies(atom.frag, context.owner)]
        both = [atom for atom in about if mixed.get(atom) == pair]
        joining = [atom for atom in about if atom not in both and dependencies(atom.frag, context.owner) <= pair]
        if not any(dependencies(atom.frag, context.owner) == pair for atom in joining):
            if table in selected:
                raise _not_joined(context, table, columns)
            continue  # two tables that nothing else connects: refused with the condition
        alone = len(joining) + len(both) == len(about) and not any(atom.tables - {table} for atom in about)
        row = _joined_row(context, target, table, joining, alone=alone)
        columns = [_replaced(context, column, row) for column in columns]
        replaced = [Atom(context.joins.replaced(atom.frag, row)) for atom in both]
        there = [Atom(context.joins.there(row, joining[0].node))] if alone else []
        dropped = [*both, *joining] if alone else both
        atoms = [atom for atom in atoms if atom not in dropped] + replaced + there
        gone |= {table} if alone else set()
    return tuple(columns), atoms, gone


def _joined_row(context: Context, target: QueryTarget, table: int, joining: Sequence[Atom], *, alone: bool) -> int:
    """The join that finds the one row of `table`. Where others lead to rows of it too, it has to be known to be one:
    of several, a user might get values of another one than the row that he may see."""
    node = joining[0].node
    row, _ = context.joins.join(table, joining, node, target.table)
    if not context.joins.by_id(row):
        if not alone:
            message = "values of a row are used that depends on the request, and several rows may be joined"
            hint = "join by its `id`, or sync that table by a query of its own"
            raise error_at(RuleCode.SINGLE_TABLE, message, node, hint)
        context.report.add(one_of_several(context.table_at(table), node))
    return row


def _replaced(context: Context, column: SelectedColumn | SelectedStar, row: int) -> SelectedColumn | SelectedStar:
    if isinstance(column, SelectedStar):
        return column
    return replace(column, value=context.joins.replaced(column.value, row))


def _owners(context: Context, column: SelectedColumn | SelectedStar) -> set[int]:
    if isinstance(column, SelectedStar):
        return {column.table}
    return {context.owner(source) for source in column.value.sources}


def _not_joined(context: Context, table: int, columns: Sequence[SelectedColumn | SelectedStar]) -> RuleError:
    node = next(column.node for column in columns if table in _owners(context, column))
    message = f"columns of `{context.table_at(table).pattern.name}` are selected, which is not joined by `=`"
    hint = "join it to the synced table: `JOIN … ON b.id = a.b_id`"
    return error_at(RuleCode.SINGLE_TABLE, message, node, hint)


def find_mixed(context: Context, selection: Selection) -> None:
    """Report conditions that can't be split, in a query that is rejected for other errors already: those that compare
    a selected table with the request."""
    selected = {owner for column in selection.columns for owner in _owners(context, column)}
    _find_mixed(context, selection.condition, selected or set(selection.tables))


def _find_mixed(context: Context, condition: Condition, selected: set[int]) -> None:
    if not isinstance(condition, Atom):
        for item in condition.items:
            _find_mixed(context, item, selected)
        return
    if condition.absence is not None:
        return
    for side in condition.link or (condition.frag,):
        owners = dependencies(side, context.owner)
        tables = {owner for owner in owners if owner != REQUEST and isinstance(context.instances[owner], TableRef)}
        if tables & selected and tables != owners:
            context.report.add(_mixed(context, condition))
            return


def _mixed(context: Context, atom: Atom) -> RuleError:
    owners = dependencies(atom.frag, context.owner)
    what = "the request with a table" if REQUEST in owners and len(owners) == 2 else "several tables"
    hint = "connect them by `a = b` or `a IN (…)`, with the values of one side only on each side of it"
    if REQUEST in owners:
        hint += "; rows of a subquery may be compared with the request in any way"
    return error_at(RuleCode.MIXED_FILTER, f"this condition combines {what} other than by `=`", atom.node, hint)


_REQUESTED = frozenset(value.value for value in RequestInput)
_ELEMENTS = -2
"""Rows made of the request's arrays, as a source like the request and the tables."""


@dataclass(slots=True)
class _Link:
    """An equality between values of two different owners."""

    sides: tuple[Frag, Frag]
    owners: tuple[int, int]

    def side(self, owner: int) -> Frag | None:
        return self.sides[self.owners.index(owner)] if owner in self.owners else None

    def other(self, owner: int) -> tuple[Frag, int]:
        position = 1 - self.owners.index(owner)
        return self.sides[position], self.owners[position]


@dataclass(slots=True)
class _Parts:
    """The filters and arrays of one table, or of all the request's arrays together."""

    filters: list[Frag] = field(default_factory=list)
    arrays: list[int] = field(default_factory=list)


class _Term:
    def __init__(self, context: Context, target: QueryTarget, joined: frozenset[int]) -> None:
        self._context = context
        self._target = target
        self._parts: dict[int, _Parts] = {}
        self._request_arrays: dict[int, int] = {}  # number of links that use each
        self._elements = _Parts()
        self._links: list[_Link] = []
        self._gates: list[Frag] = []
        self._conditions: list[Frag] = []  # on rows that are looked up, with each other and with the request
        for number in sorted(joined):
            owner = context.owner(number)
            if isinstance(context.instances[owner], ExpandedArray):
                self._request_arrays[owner] = 0
            else:
                parts = self._parts.setdefault(owner, _Parts())
                if owner != number:
                    parts.arrays.append(number)
        for parts in self._parts.values():
            parts.arrays.sort(key=lambda number: (expr_order(self._expr(self._array(number))), number))

    def plan(self, term: Sequence[Atom]) -> VariantDraft:
        self._classify_all(term)
        self._combine_arrays()
        stages = self._order_tables()
        if self._elements.arrays:
            stages.insert(0, _ELEMENTS)
        provided = {table: stage for stage, table in enumerate(stages)}
        outputs = self._outputs(stages)
        filters_of = self._filters(provided, outputs)
        lookups = tuple(
            self._lookup(table, provided, outputs, filters_of.get(table, ())) for table in stages if table != _ELEMENTS
        )
        target = self._target
        row_params = self._keyed(target.table, provided, outputs)
        for number, uses in self._request_arrays.items():
            if not uses:
                array = self._array(number)
                self._gates.append(build(ExprKind.CERTAIN, array.node, "EXISTS (SELECT 1 FROM json_each(", array, "))"))
        request = None
        if self._elements.arrays:
            filters, arrays = self._rows_of(self._elements)
            request = RequestStage(arrays, filters, outputs[_ELEMENTS])
        pattern = self._context.table_at(target.table).pattern
        row = RowSource(
            pattern, target.output_table, *self._rows_of(self._parts[target.table]), tuple(row_params),
            tuple(self._projected(column) for column in target.columns),
        )  # fmt: skip
        exprs = [*row.deciding(), *row.selected(), *(expr for each in lookups for expr in each.lookup.exprs())]
        return VariantDraft(
            row,
            self._sorted(self._gates),
            request,
            lookups,
            tuple(tuple(sources) for sources in row_params.values()),
            self._dangerous(),
            self._context.joins.used(exprs),
        )

    # classifying atoms

    def _classify_all(self, term: Sequence[Atom]) -> None:
        failed: RuleError | None = None
        for atom in term:
            try:
                self._classify(atom)
            except RuleError as error:
                self._context.report.add(error)
                failed = error
        if failed is not None:
            raise failed

    def _classify(self, atom: Atom) -> None:
        owners = dependencies(atom.frag, self._context.owner)
        in_link = atom.link is not None and len(owners) > 1
        if moving(atom.frag) and (in_link or not owners <= {self._target.table}):
            raise elsewhere(atom.node)
        if owners <= {REQUEST}:
            if atom.frag.parts != ("1",):
                self._gates.append(atom.frag)
        elif owners <= {REQUEST, *self._request_arrays}:
            self._elements.filters.append(atom.frag)
            self._need_elements(owners)
        elif len(owners) == 1:
            self._parts[next(iter(owners))].filters.append(atom.frag)
        elif (link := self._link(atom)) is not None:
            self._links.append(link)
        elif self._target.table not in owners:
            self._conditions.append(atom.frag)
            self._need_elements(owner for owner in owners if owner in self._request_arrays)
        else:
            raise _mixed(self._context, atom)

    def _link(self, atom: Atom) -> _Link | None:
        """An equality of values that have one owner each; None for any other condition."""
        if atom.link is None:
            return None
        left, right = map(self._owner, atom.link)
        if left is None or right is None or left == right:
            return None
        for side in atom.link:
            self._note_use(side)
        return _Link(atom.link, (left, right))

    def _owner(self, side: Frag) -> int | None:
        """The owner of one side of a link; None for a mixture."""
        owners = dependencies(side, self._context.owner)
        if len(owners) == 1:
            return next(iter(owners))
        return _ELEMENTS if owners and owners <= {REQUEST, *self._request_arrays} else None

    def _note_use(self, side: Frag) -> None:
        """Note what one side of a link uses of the request's arrays: an element as it is, or elements as rows."""
        owners = dependencies(side, self._context.owner)
        if len(owners) == 1:
            (owner,) = owners
            if owner not in self._request_arrays:
                return
            self._request_arrays[owner] += 1
            if side.ref is not None and side.ref.column == "value":
                return
        self._need_elements(owners)

    def _need_elements(self, owners: Iterable[int]) -> None:
        wanted = [owner for owner in owners if owner != REQUEST and owner not in self._elements.arrays]
        self._elements.arrays = sorted([*self._elements.arrays, *wanted])

    def _combine_arrays(self) -> None:
        """Arrays whose elements are compared once, unchanged, give values; all others give rows."""
        self._need_elements(number for number, uses in self._request_arrays.items() if uses > 1)
        for number in self._elements.arrays:
            del self._request_arrays[number]
        for link in self._links:
            left, right = (_ELEMENTS if owner in self._elements.arrays else owner for owner in link.owners)
            link.owners = (left, right)

    # who decides

    def _dangerous(self) -> bool:
        """Whether the client decides which buckets it gets: by the values that lead to them, if the token has no
        part in any of them, or by the conditions on the request. Lookups that no request value leads to are the same
        for everybody."""
        leading = list(self._leading())
        gates = [gate for gate in self._gates if not every_user_passes(self._expr(gate))]
        tests = [frag.trust for frag in (*gates, *self._elements.filters, *self._conditions)]
        if not any(trust.client for trust in (*tests, *(trust for trust, _ in leading))):
            return False
        repeated = frozenset[object]().union(*(test.repeated for test in tests))
        if any(trust.bound or parts in repeated for trust, parts in leading):
            return False
        needed = TokenProof.TOKEN if any(trust.client for trust, _ in leading) else TokenProof.REPEATED
        return max((test.true for test in tests), default=TokenProof.NONE) < needed

    def _leading(self) -> Iterator[tuple[Trust, object]]:
        """The values of the request that tables are searched by: the trust in them, and their SQL."""
        for link in self._links:
            for side, owner in zip(link.sides, link.owners, strict=True):
                if owner in self._request_arrays:
                    array = self._array(owner)
                    yield element(array.trust), array.parts
                elif owner in {REQUEST, _ELEMENTS}:
                    yield side.trust, side.parts

    # the order of lookups

    def _order_tables(self) -> list[int]:
        """The tables besides the synced one, each after those that its key comes from. A table that nothing leads to is
        looked up as a whole, without a key."""
        waiting = [table for table in self._parts if table != self._target.table]
        known = {REQUEST, _ELEMENTS, *self._request_arrays}
        ordered: list[int] = []
        while waiting:
            table = next((table for table in waiting if self._connected(table, known)), waiting[0])
            waiting.remove(table)
            ordered.append(table)
            known.add(table)
        return ordered

    def _connected(self, table: int, known: set[int]) -> bool:
        return any(link.side(table) is not None and link.other(table)[1] in known for link in self._links)

    def _outputs(self, stages: Sequence[int]) -> dict[int, tuple[Expr, ...]]:
        """For each stage, the values that later stages or the bucket parameters need."""
        order = {table: number for number, table in enumerate((*stages, self._target.table))}
        needed: dict[int, set[Expr]] = {table: set() for table in stages}
        for link in self._links:
            left, right = (order.get(owner) for owner in link.owners)
            if left is None or right is None:
                continue
            giver = 0 if left < right else 1
            needed[link.owners[giver]].add(self._expr(link.sides[giver]))
        for ref in (ref for frag in self._conditions for ref in frag.parts if isinstance(ref, Ref)):
            if ref.table != REQUEST:
                needed[self._stage_of(ref)].add(self._compared(ref))
        return {table: tuple(sorted(exprs, key=expr_order)) for table, exprs in needed.items()}

    def _stage_of(self, ref: Ref) -> int:
        """The table whose stage gives a value, or _ELEMENTS."""
        owner = self._context.owner(ref.table)
        return _ELEMENTS if owner in self._elements.arrays else owner

    def _compared(self, ref: Ref) -> Expr:
        """A value of a row as a SQL literal, so that nulls and blobs, which no stage can give, come through."""
        return Expr("quote(?1)", (self._input(ref),))

    def _filters(self, provided: dict[int, int], outputs: dict[int, tuple[Expr, ...]]) -> dict[int, tuple[Expr, ...]]:
        """The conditions on rows that are looked up, each with the last table that it reads."""

        def name(ref: Ref) -> str:
            if ref.table == REQUEST:
                return ref.column
            stage = self._stage_of(ref)
            return found_input(provided[stage], outputs[stage].index(self._compared(ref)))

        found: dict[int, set[Expr]] = {}
        for frag in self._conditions:
            tables = {self._stage_of(part) for part in frag.parts if isinstance(part, Ref) and part.table != REQUEST}
            found.setdefault(max(tables, key=provided.__getitem__), set()).add(to_expr(frag, name))
        return {table: tuple(sorted(exprs, key=expr_order)) for table, exprs in found.items()}

    def _lookup(
        self,
        table: int,
        provided: dict[int, int],
        outputs: dict[int, tuple[Expr, ...]],
        filters: tuple[Expr, ...],
    ) -> DraftedStage:
        earlier = {other: stage for other, stage in provided.items() if stage < provided[table]}
        pairs = [(key, source) for key, sources in self._keyed(table, earlier, outputs).items() for source in sources]
        pattern, keys = self._context.table_at(table).pattern, tuple(key for key, _ in pairs)
        definition = LookupDefinition("", "", pattern, *self._rows_of(self._parts[table]), keys, outputs[table])
        return DraftedStage(definition, tuple(source for _, source in pairs), filters)

    def _keyed(
        self, table: int, provided: dict[int, int], outputs: dict[int, tuple[Expr, ...]]
    ) -> dict[Expr, list[ParamSource]]:
        """Values of `table`, and the sources of the values that they must equal, in a fixed order."""
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
            return FromRequest(self._expr(self._array(owner)), each=True)
        if owner not in provided:
            return None
        return FromStage(provided[owner], outputs[owner].index(self._expr(value)))

    # expressions

    def _projected(self, column: SelectedColumn | SelectedStar) -> Output | Star:
        if isinstance(column, SelectedStar):
            return Star(self._context.semantics.star_is_all)
        return Output(column.name, self._expr(column.value))

    def _rows_of(self, parts: _Parts) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
        """The filters and arrays."""
        return self._sorted(parts.filters), tuple(self._expr(self._array(number)) for number in parts.arrays)

    def _array(self, number: int) -> Frag:
        instance = self._context.instances[number]
        assert isinstance(instance, ExpandedArray)
        return instance.array

    def _sorted(self, frags: Sequence[Frag]) -> tuple[Expr, ...]:
        return tuple(sorted({self._expr(frag) for frag in frags}, key=expr_order))

    def _expr(self, frag: Frag) -> Expr:
        return to_expr(frag, self._input)

    def _input(self, ref: Ref) -> str:
        if ref.table == REQUEST or not isinstance(self._context.instances[ref.table], ExpandedArray):
            return self._context.joins.input(ref.column)
        parts = self._parts.get(self._context.owner(ref.table), self._elements)
        return element_input(ref.column, parts.arrays.index(ref.table))
