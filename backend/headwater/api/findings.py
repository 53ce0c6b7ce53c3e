"""Findings in sync configs, as answers have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from headwater.api.errors import ApiError
from headwater_rules.errors import RuleError


class RuleFinding(Struct, frozen=True):
    """An error or warning in a sync config. `place` has the offsets, lines and columns in its text. `edit` has those of
    what to replace and by what, where that is certain."""

    code: str
    severity: str
    message: str
    suggestion: str | None
    place: Mapping[str, object] | None
    edit: Mapping[str, object] | None = None


def finding_of(error: RuleError) -> RuleFinding:
    return msgspec.convert(error.to_dict(), RuleFinding)


class RefusedRulesError(ApiError):
    """A sync config is refused for what was found in it."""

    def __init__(self, what: str, fix: str, code: str, found: Sequence[RuleError]) -> None:
        super().__init__(what, fix=fix, code=code)
        self.args = (what, fix, code, found)  # what pickle replays
        self.findings = tuple(map(finding_of, found))
