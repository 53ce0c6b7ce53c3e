"""Finds the queries whose rows every user gets, whoever it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from headwater_rules.compiler.planner import VariantDraft
from headwater_rules.compiler.trials import every_user_passes, holds, samples
from headwater_rules.errors import Code, Place, Report, RuleError, Severity
from headwater_rules.plan import Expr, RowFunction
from headwater_rules.text.sqltext import SqlText

_ALLOWED = re.compile(r"#[ \t]*headwater:[ \t]*everybody")
_NEVER_NULL = frozenset({"id", *(function.value for function in RowFunction)})
_MOST_TRIED = 1_000
_TRIED_PER_WORD = 10  # trying so many values takes as long as compiling a word


@dataclass(frozen=True, slots=True)
class ForEverybody:
    """Every user of `stream` gets the rows of a bucket definition: all rows of `table` if `whole`, else those that pass
    conditions on the row. `query` decides it."""

    stream: str
    definition: str
    table: str
    whole: bool
    query: SqlText


def for_everybody(
    drafts: Sequence[VariantDraft], report: Report, place: Place, *, automatic: bool
) -> list[tuple[VariantDraft, bool]]:
    """Those of a query's alternatives that depend on nobody, and whether they select whole tables. If others depend on
    the user, only whole tables are returned: rows such as public ones may be for everybody. If none does, only streams
    that are `automatic` are."""
    found = [(draft, _is_whole(draft, report, place)) for draft in drafts if _is_open(draft)]
    if len(found) < len(drafts):
        return [(draft, whole) for draft, whole in found if whole]
    return found if automatic else []


def allowed(query: SqlText) -> bool:
    """Whether `# headwater: everybody` stands among the comments directly above the line on which a query begins."""
    lines = query.document[: query.start].split("\n")[:-1]
    for line in map(str.strip, reversed(lines)):
        if not line.startswith("#"):
            return False
        if _ALLOWED.fullmatch(line):
            return True
    return False


def warnings(found: Iterable[ForEverybody]) -> Iterator[RuleError]:
    """One warning for each query."""
    by_query: dict[int, list[ForEverybody]] = {}
    for each in found:
        by_query.setdefault(each.query.start, []).append(each)
    for of_query in by_query.values():
        query = of_query[0].query
        named = ", ".join(dict.fromkeys(f"`{each.table}`" for each in of_query))
        what = "all rows" if all(each.whole for each in of_query) else "the same rows"
        message = f"every user gets {what} of {named}: nothing in this query depends on who it is"
        if any(query.sql.lower().count(word) for word in ("auth.", "request.", "token_parameters")):
            message = f"every user gets {what} of {named}: a part of the condition is true for everybody"
        hint = (
            "compare with a value of the token in each alternative (policies of the source do not apply); if it is"
            " meant, write `# headwater: everybody` on the line above"
        )
        yield RuleError(Code.EVERYBODY, message, query.place(), hint, Severity.WARNING)


def _is_open(draft: VariantDraft) -> bool:
    if draft.arrays is not None or draft.requested():
        return False
    return all(every_user_passes(gate) for gate in draft.gates)


def _is_whole(draft: VariantDraft, report: Report, place: Place) -> bool:
    row = draft.row
    if draft.lookups or row.each or row.params:
        return False
    return all(_always(test, report, place) for test in row.filters)


def _always(test: Expr, report: Report, place: Place) -> bool:
    """Whether a condition on a row is true for all values that were tried, among them those that it names."""
    values = samples(test)
    choices = [[value for value in values if value is not None or name not in _NEVER_NULL] for name in test.inputs]
    if prod(map(len, choices)) > _MOST_TRIED:
        return False
    tried = 0
    for chosen in product(*choices):
        tried += 1
        if not holds(test, chosen):
            return False
    report.spend(tried // _TRIED_PER_WORD, place)
    return True
