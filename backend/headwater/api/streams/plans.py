"""The active sync config, compiled once for all streams of the process."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from headwater.storage.contract.reader import StoredConfig
from headwater_rules.compiler.compile import compile_config
from headwater_rules.evaluate.limits import MOST_BUCKETS, MOST_RESULTS
from headwater_rules.evaluate.requests import resolve
from headwater_rules.plan import SyncPlan
from headwater_rules.results import LookupReader, Resolution, SyncRequest


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one connection may ask for."""

    max_buckets: int = MOST_BUCKETS
    max_results: int = MOST_RESULTS


class Plans:
    """Resolves requests with the compiled plan of a config. Keeps only the newest plan. Safe to use from several
    threads."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._held: tuple[int, SyncPlan] | None = None

    def resolve(
        self, config: StoredConfig, request: SyncRequest, read: LookupReader, left_out: frozenset[str]
    ) -> Resolution:
        """The buckets of a request. `left_out` has the keys of subscriptions that did not fit before. Raises
        RuleErrors."""
        return resolve(
            self._plan(config),
            request,
            read,
            max_buckets=self._limits.max_buckets,
            max_results=self._limits.max_results,
            left_out=left_out,
        )

    def _plan(self, config: StoredConfig) -> SyncPlan:
        with self._lock:
            if self._held is None or self._held[0] != config.id:
                self._held = (config.id, compile_config(config.yaml).plan)
            return self._held[1]
