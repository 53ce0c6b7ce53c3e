"""How the SQL of a sync config is read: what differs between the editions, and between the places of a query."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Requests(Enum):
    """How a query names values of the request, if it may."""

    STREAM = "auth, connection and subscription"
    PARAMETERS = "request, token_parameters and user_parameters"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Semantics:
    """The reading of one query.

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
        """Whether `*` has the columns that begin with `_` too, and replaces what was selected before it."""
        return self.edition >= 3

    @property
    def empty_subscription(self) -> bool:
        """Whether a subscription without parameters has an object without keys, rather than null."""
        return self.edition == 2

    def naming(self, requests: Requests) -> Semantics:
        """The same reading with other names for values of the request."""
        return replace(self, requests=requests)
