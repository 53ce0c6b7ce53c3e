"""Finds streams with one bucket per row of a table, of which a device may need as many as it has rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from headwater_rules.compiler.fragment import ExprKind, Frag, Ref, text, to_expr
from headwater_rules.plan import (
    Expr,
    FromRequest,
    FromStage,
    LookupStage,
    ParamSource,
    RowFunction,
    RowSource,
    SyncPlan,
    Variant,
)

_UNIQUE: dict[tuple[str, ...], str] = {("id",): "id", (RowFunction.ROW_ID.value,): "row_id()"}
"""Values that are unique within a table."""

_COLUMN = Frag((Ref(0, "id"),), ExprKind.ANY, exp.Null())
_FORMS = frozenset(to_expr(form, lambda ref: ref.column).sql for form in (_COLUMN, text(_COLUMN)))
"""A column as it is and as text. Other forms of a unique value need not be unique."""


@dataclass(frozen=True, slots=True)
class BucketPerRow:
    """`definition` has one bucket for each row of `table` (`schema.name`), identified by `value`, and a request of
    `stream` can lead to many of them."""

    stream: str
    definition: str
    table: str
    value: str


def buckets_per_row(plan: SyncPlan) -> tuple[BucketPerRow, ...]:
    """All such definitions of a plan, in its order."""
    return tuple(dict.fromkeys(_found(plan)))


def _found(plan: SyncPlan) -> Iterator[BucketPerRow]:
    for stream in plan.streams:
        for variant in stream.variants:
            for definition in (plan.buckets[number] for number in variant.buckets):
                for source in definition.sources:
                    value = _unique(plan, variant, source)
                    if value is not None:
                        table = f"{source.table.schema}.{source.table.name}"
                        yield BucketPerRow(stream.name, definition.name, table, value)


def _unique(plan: SyncPlan, variant: Variant, source: RowSource) -> str | None:
    """The unique value that determines a row's bucket, unless a request has at most one such value."""
    for param, given in zip(source.params, variant.params, strict=True):
        value = _value(param)
        if value is not None and not any(_single(plan, variant, each) for each in given):
            return value
    return None


def _value(expr: Expr) -> str | None:
    """The unique value that an expression is."""
    return _UNIQUE.get(expr.inputs) if expr.sql in _FORMS else None


def _single(plan: SyncPlan, variant: Variant, source: ParamSource) -> bool:
    """Whether a request has at most one value of it."""
    match source:
        case FromRequest(_, each):
            return not each
        case FromStage(number, _):
            stage = variant.stages[number]
            if not isinstance(stage, LookupStage):
                return False
            lookup = plan.lookups[stage.lookup]
            if lookup.each:
                return False
            keys = zip(lookup.keys, stage.keys, strict=True)
            return any(_value(key) is not None and _single(plan, variant, given) for key, given in keys)
