"""Computed tables of a source: which there are, and how their last refreshes went, which the store keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import orjson

from headwater.source.readiness.finding import Finding, shortened
from headwater.storage.contract.store import Lease
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.plan import ComputedTable, SyncPlan

_KEY = "computed tables {}"
CUT_SHORT = 3
"""How many attempts in a row that do not come to an end are the query's fault."""


@dataclass(frozen=True, slots=True)
class RefreshState:
    """How a computed table stands. Its rows are those of the source at `lsn`, read at `at` (seconds since 1970); both
    are empty before the first time. They are by the definition with the digest `of`, which is empty while some may be
    by another one. The last refresh took `seconds`, read `rows` rows and changed `changed`. The last attempt was by the
    definition with the digest `tried`; if it failed, at `failed_at`, `code`, `what` and `fix` say why. The query reads
    the tables `reads`; commits to those in `unseen` are not streamed. `unfinished` attempts by `tried` began, the last
    one at `begun_at`, without any that came to an end since; one of them may still run. `version` is that of
    what it read outside the source, where that is known."""

    name: str
    tried: str = ""
    lsn: str = ""
    at: float = 0.0
    seconds: float = 0.0
    rows: int = 0
    changed: int = 0
    code: str = ""
    what: str = ""
    fix: str = ""
    failed_at: float = 0.0
    reads: tuple[tuple[str, str], ...] = ()
    unseen: tuple[str, ...] = ()
    version: str = ""
    of: str = ""
    unfinished: int = 0
    begun_at: float = 0.0


def moved(state: RefreshState, seconds: float) -> RefreshState:
    """The same by a clock that is so far ahead."""
    at, failed_at, begun_at = (time and time + seconds for time in (state.at, state.failed_at, state.begun_at))
    return replace(state, at=at, failed_at=failed_at, begun_at=begun_at)


def definition_of(table: ComputedTable) -> str:
    """A digest of what decides which rows a computed table has."""
    engine = ["spark"] if table.spark else []
    return hashlib.sha256(orjson.dumps([table.query, table.key, *engine])).hexdigest()


def computed_tables(plans: Sequence[SyncPlan]) -> dict[str, ComputedTable]:
    """By name, the computed tables that any of these plans reads. Of several with one name, the first one counts."""
    found: dict[str, ComputedTable] = {}
    read = {pattern for plan in plans for pattern in plan.tables()}
    for table in (table for plan in plans for table in plan.computed):
        if table.pattern in read:
            found.setdefault(table.name, table)
    return found


def refresh_states(store: StoreWriter, source: str) -> dict[str, RefreshState]:
    """How the computed tables of a source stand, by name."""
    try:
        states = msgspec.json.decode(store.get_meta(_KEY.format(source)) or "[]", type=list[RefreshState])
    except msgspec.DecodeError:  # of another version of headwater: all are computed again
        return {}
    return {state.name: state for state in states}


def note_states(store: StoreWriter, lease: Lease, states: Mapping[str, RefreshState]) -> None:
    """Keep how the computed tables of the lease's source stand."""
    store.set_meta(lease, _KEY.format(lease.name), orjson.dumps(list(states.values())).decode())


def refresh_findings(states: Collection[RefreshState]) -> tuple[Finding, ...]:
    """Computed tables that can't be computed, or not when they should be."""
    failed = [
        Finding(
            state.code,
            f"computed table {state.name} keeps its rows{_as_of(state)}: {state.what}",
            state.fix,
            about=f"{state.name}: {state.what}",
        )
        for state in states
        if state.code
    ]
    unseen = [
        Finding(
            "HW_2707",
            f"commits to {shortened(state.unseen)} do not refresh the computed table {state.name}: not published",
            "add it to the publication, or set `every` under `refresh`",
            fatal=False,
        )
        for state in states
        if state.unseen
    ]
    cut_short = [
        Finding(
            "HW_2709",
            f"computed table {state.name} keeps its rows{_as_of(state)}: {state.unfinished - 1} attempts in a row did"
            " not come to an end, since connection, server or service ended first",
            "look in the log of Postgres for why, and correct the query, or lower `timeout` under `refresh`",
            about=f"{state.name}: cut short",
        )
        for state in states
        if state.unfinished >= CUT_SHORT
    ]
    return (*failed, *cut_short, *unseen)


def _as_of(state: RefreshState) -> str:
    return f" as of {state.lsn}" if state.lsn else ", of which there are none yet"
