"""What expressions need to know of where they stand, and whom they tell what is noticed of them."""

from __future__ import annotations

from typing import Protocol

from sqlglot import exp

from headwater_rules.compiler.expressions.fragment import Frag
from headwater_rules.errors import Place, RuleError


class Names(Protocol):
    """What identifiers mean where an expression stands."""

    def column(self, node: exp.Column) -> Frag:
        """The value of a column. Raises RuleError when there is none of that name, or several."""

    def row_function(self, qualifier: str | None, name: str, node: exp.Expr) -> Frag:
        """The value of `alias.table_suffix()` and its like."""


class Watcher(Protocol):
    """Who is told what is noticed of expressions."""

    def failed(self, error: RuleError) -> Frag:
        """Take note of an error; what is returned stands for the value."""

    def compared(self, left: Frag, right: Frag, place: Place, *, equality: bool = True) -> None:
        """Two values are compared."""

    def searched(self, left: Frag, array: Frag, place: Place) -> None:
        """A value is searched in an array."""

    def json(self, value: Frag, place: Place, what: str) -> None:
        """`what` reads a value as JSON."""
