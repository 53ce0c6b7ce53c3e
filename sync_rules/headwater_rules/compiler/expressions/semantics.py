"""The meaning of a sync config's SQL: differences between editions, and between kinds of queries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Requests(Enum):
    """How a query names request values, if it can."""

    STREAM = "auth, connection and subscription"
    PARAMETERS = "request, token_parameters and user_parameters"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Semantics:
    """The meaning of the SQL of one query.

    `fixed_paths` is the option `fixed_json_extract`: a JSON path without `$` is one key, and a JSON null is null.
    """

    edition: int
    fixed_paths: bool
    requests: Requests = Requests.STREAM

    @property
    def null_differs(self) -> bool:
        """Whether null passes `!=`."""
        return self.edition >= 3

    @property
    def star_is_all(self) -> bool:
        """Whether `*` includes columns that begin with `_`, and overrides columns selected before it."""
        return self.edition >= 3

    @property
    def empty_subscription(self) -> bool:
        """Whether a subscription without parameters has an empty object rather than null."""
        return self.edition == 2

    def naming(self, requests: Requests) -> Semantics:
        """The same meaning with other names for request values."""
        return replace(self, requests=requests)
