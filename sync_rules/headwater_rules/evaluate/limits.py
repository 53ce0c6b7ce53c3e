"""The limits of one request, and the message for a subscription that exceeds them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Set
from dataclasses import dataclass
from enum import Enum
from typing import Final

from headwater_rules.results import OmittedSubscription, StreamSubscription

LIMIT_CODE = "PSYNC_S2305"
"""A subscription exceeds a limit of its request, so it is left out."""


MOST_BUCKETS: Final = 1000
"""Default limit for the buckets of one connection."""

MOST_RESULTS: Final = 1000
"""Default limit for the lookup keys, and for the rows found with them, in one step of a request."""


class Setting(Enum):
    """The setting of a limit."""

    BUCKETS = "api.parameters.max_buckets_per_connection"
    RESULTS = "api.parameters.max_parameter_query_results"


class TooManyResultsError(Exception):
    """A step of a request exceeds its limit: it needs more than `most` `what`, which are lookups or rows."""

    def __init__(self, most: int, what: str) -> None:
        super().__init__(most, what)
        self.most = most
        self.what = what


def _key(subscription: StreamSubscription, setting: Setting) -> str:
    """A short key for a subscription and a limit, equal in every request."""
    text = json.dumps([subscription.stream, subscription.parameters, setting.name], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class ResolveLimits:
    """The limits of one request. `left_out` are the keys of subscriptions that are currently left out. Each comes back
    only below nine tenths of the limit; otherwise, around the limit, it would come and go with every change."""

    buckets: int
    results: int
    left_out: Set[str] = frozenset()

    def most(self, setting: Setting, subscription: StreamSubscription) -> int:
        """The limit for a subscription: of all buckets of the request, or of the results in each of its steps."""
        limit = self._of(setting)
        if not self.left_out or _key(subscription, setting) not in self.left_out:
            return limit
        return max(1, (limit * 9 - 1) // 10)

    def omitted(self, subscription: StreamSubscription, setting: Setting, reason: str) -> OmittedSubscription:
        """The result for a subscription that exceeds a limit."""
        limit, most = self._of(setting), self.most(setting, subscription)
        back = "" if most == limit else f", and it comes back at {most:,} or less"
        allowed = f"{setting.value} allows {limit:,}{back}"
        message = f"left out by a limit: {reason}; {allowed}; narrow its query, or raise the setting"
        return OmittedSubscription(_key(subscription, setting), subscription.stream, message)

    def _of(self, setting: Setting) -> int:
        return self.buckets if setting is Setting.BUCKETS else self.results
