"""The interfaces through which expressions look up names and report findings."""

from __future__ import annotations

from typing import Protocol

from sqlglot import exp

from headwater_rules.compiler.expressions.fragment import Frag
from headwater_rules.errors import Place, RuleError


class Names(Protocol):
    """The meaning of identifiers where an expression is used."""

    def column(self, node: exp.Column) -> Frag:
        """The value of a column. Raises RuleError when there is no such column, or more than one."""

    def row_function(self, qualifier: str | None, name: str, node: exp.Expr) -> Frag:
        """The value of `alias.table_suffix()` and similar functions."""


class Watcher(Protocol):
    """Receives findings about expressions."""

    def failed(self, error: RuleError) -> Frag:
        """Report an error; returns a placeholder value."""

    def built(self, value: Frag) -> None:
        """A value was translated, which takes memory and time by its size. Raises StoppedError where that is too much
        in all."""

    def compared(self, left: Frag, right: Frag, place: Place, *, equality: bool = True) -> None:
        """Two values are compared."""

    def searched(self, left: Frag, array: Frag, place: Place) -> None:
        """A value is searched for in an array."""

    def json(self, value: Frag, place: Place, what: str) -> None:
        """`what` reads a value as JSON."""
