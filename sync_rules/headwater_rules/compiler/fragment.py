"""Fragments of SQLite SQL that record which table or request each of their values comes from.

The planner never interprets an expression: expressions are translated to SQL at once, and the planner moves the
fragments around, looking only at what they depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from sqlglot import exp

from headwater_rules.compiler.trust import CLIENT, NEITHER, TOKEN, Trust, chained, one_of, opposite, repeating, together
from headwater_rules.errors import RuleCode, Span
from headwater_rules.plan import AUTHENTICATED, Expr, RequestInput
from headwater_rules.text.sqltext import error_at, span_of

REQUEST = -1
"""The source number of claims and parameters, besides the numbers of tables."""

MAX_SIZE = 1_000_000
_REF_SIZE = 4


class ExprKind(Enum):
    """What is known about an expression's value before evaluation. All but CERTAIN may be null."""

    CERTAIN = "0 or 1"
    LOGICAL = "0, 1 or null"
    INTEGER = "integer"
    NUMBER = "integer or real"
    TEXT = "text"
    ANY = "any"


NUMERIC = frozenset({ExprKind.CERTAIN, ExprKind.LOGICAL, ExprKind.INTEGER, ExprKind.NUMBER})


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of a table (by its number in the query) or of the request; `column` is the input's name in `Expr`."""

    table: int
    column: str


@dataclass(frozen=True, slots=True)
class Frag:
    """SQL text and references in alternation, with brackets wherever precedence could matter. `node` is the expression
    that it translates, for errors."""

    parts: tuple[str | Ref, ...]
    kind: ExprKind
    node: exp.Expr = field(compare=False, repr=False)
    trust: Trust = field(default=NEITHER, compare=False)

    def span(self) -> Span:
        return span_of(self.node)

    @property
    def sources(self) -> frozenset[int]:
        return frozenset(part.table for part in self.parts if isinstance(part, Ref))

    @property
    def size(self) -> int:
        """Approximate number of characters of its SQL."""
        return sum(len(part) if isinstance(part, str) else _REF_SIZE for part in self.parts)

    @property
    def simple(self) -> bool:
        """Whether it is cheap to repeat."""
        return len(self.parts) == 1

    @property
    def ref(self) -> Ref | None:
        """The reference, if the fragment consists of one."""
        part = self.parts[0]
        return part if len(self.parts) == 1 and isinstance(part, Ref) else None


def request_value(value: RequestInput, kind: ExprKind, node: exp.Expr) -> Frag:
    """A value of the request."""
    trust = TOKEN if value.value in AUTHENTICATED else CLIENT
    return Frag((Ref(REQUEST, value.value),), kind, node, trust)


def build(kind: ExprKind, node: exp.Expr, *pieces: str | Frag, trust: Trust | None = None) -> Frag:
    """Concatenate pieces to a fragment. Without `trust`, nothing is known of it but what it depends on. Raises
    RuleError when it gets too large, which a few subqueries that each double a column can cause."""
    _check_size(node, pieces)
    parts: list[str | Ref] = []
    for piece in pieces:
        for part in (piece,) if isinstance(piece, str) else piece.parts:
            if isinstance(part, str) and parts and isinstance(parts[-1], str):
                parts[-1] += part
            else:
                parts.append(part)
    if trust is None:
        trust = together([piece.trust for piece in pieces if isinstance(piece, Frag)])
    return Frag(tuple(parts), kind, node, trust)


def _check_size(node: exp.Expr, pieces: Sequence[str | Frag]) -> None:
    size = sum(len(piece) if isinstance(piece, str) else piece.size for piece in pieces)
    if size > MAX_SIZE:
        message = "an expression becomes too large when its subqueries are put into it"
        raise error_at(RuleCode.TOO_MANY, message, node, "name a column once instead of several times")


def joined(
    kind: ExprKind, node: exp.Expr, items: Sequence[Frag], between: str, trust: Trust | None = None, function: str = ""
) -> Frag:
    """The items separated by `between`, in brackets: those of the call of a `function`, if it is given."""
    pieces: list[str | Frag] = [f"{function}("]
    for number, item in enumerate(items):
        pieces += [between, item] if number else [item]
    return build(kind, node, *pieces, ")", trust=trust)


_TRUTH = {
    ExprKind.LOGICAL: ("ifnull(", ", 0)"),
    **dict.fromkeys((ExprKind.INTEGER, ExprKind.NUMBER), ("(ifnull(", ", 0) <> 0)")),
    ExprKind.TEXT: ("(ifnull(CAST(", " AS INTEGER), 0) <> 0)"),
    ExprKind.ANY: ("hw_truth(", ")"),
}


def truth(frag: Frag) -> Frag:
    """The value as 0 or 1: a number is true unless 0, text by its integer prefix; null and blobs are false."""
    if frag.kind is ExprKind.CERTAIN:
        return frag
    before, after = _TRUTH[frag.kind]
    pieces: tuple[str | Frag, ...] = (before, frag, after)
    if frag.kind is ExprKind.ANY and frag.simple:
        pieces = (
            "(CASE typeof(", frag, ") WHEN 'text' THEN CAST(", frag,
            " AS INTEGER) <> 0 WHEN 'blob' THEN 0 ELSE ifnull(", frag, ", 0) <> 0 END)",
        )  # fmt: skip
    return build(ExprKind.CERTAIN, frag.node, *pieces, trust=frag.trust)


def negated(frag: Frag) -> Frag:
    """1 if false or null, else 0."""
    return build(ExprKind.CERTAIN, frag.node, "(NOT ", truth(frag), ")", trust=opposite(frag.trust))


def text(frag: Frag) -> Frag:
    """The value as `||` prints it: reals without `.0`."""
    if frag.kind is ExprKind.TEXT:
        return frag
    pieces: tuple[str | Frag, ...] = ("hw_text(", frag, ")")
    if frag.kind in {ExprKind.CERTAIN, ExprKind.LOGICAL, ExprKind.INTEGER}:
        # the plus removes the affinity that a cast would add to a comparison
        pieces = ("(+CAST(", frag, " AS TEXT))")
    elif frag.simple:
        pieces = ("(+CASE typeof(", frag, ") WHEN 'text' THEN ", frag, " ELSE hw_text(", frag, ") END)")
    return build(ExprKind.TEXT, frag.node, *pieces, trust=frag.trust)


def equal(left: Frag, right: Frag, node: exp.Expr) -> Frag:
    """`left = right`, null if either is."""
    return build(ExprKind.LOGICAL, node, "(", left, " = ", right, ")", trust=equality(left, right))


def choice(values: Sequence[Frag], conditions: Sequence[Frag] = ()) -> Trust:
    """The trust in one of the values. A null selects nothing."""
    chosen = [value.trust for value in values if value.parts != ("NULL",)]
    return one_of(chosen, [condition.trust for condition in conditions])


def chain(items: Sequence[Frag]) -> Trust:
    """The trust in the texts of `items` one after another."""
    return chained([item.trust for item in items if item.trust != NEITHER or _separates(item)])


def _separates(item: Frag) -> bool:
    """Whether a constant is a literal text that is not empty. Others may be, or null, which `concat` leaves out."""
    return item.simple and str(item.parts[0]).startswith("'") and item.parts != ("''",)


def equality(left: Frag, right: Frag) -> Trust:
    """The trust in `left = right`."""
    if ("NULL",) in {left.parts, right.parts}:
        return together([left.trust, right.trust])
    for value, other in ((left, right), (right, left)):
        if value.trust.mixed and other.parts == ("1",) and value.kind in {ExprKind.CERTAIN, ExprKind.LOGICAL}:
            return value.trust
        if value.trust.mixed and other.parts == ("0",) and value.kind is ExprKind.CERTAIN:
            return opposite(value.trust)
    for side in (left, right):
        if REQUEST in side.sources and len(side.sources) > 1:  # the row's part may make up for the token's
            return together([left.trust, right.trust])
    return repeating(left.trust, right.trust, (left.parts, right.parts))


def to_expr(frag: Frag, name: Callable[[Ref], str]) -> Expr:
    """The fragment as an expression, with its distinct references numbered `?1 …` in the order of first use."""
    inputs: dict[str, int] = {}
    sql = ""
    for part in frag.parts:
        if isinstance(part, Ref):
            sql += f"?{inputs.setdefault(name(part), len(inputs) + 1)}"
        else:
            sql += part
    return Expr(sql, tuple(inputs))
