"""The interface for versions of the sync config: which are deployed, which one is served, and which row sides are
complete.

A row side is what rows of source tables produce for one bucket definition or one lookup. It is identified by the name
and digest that the rules give it, so versions share the row sides that they have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.store import Lease

KEEP_STOPPED_SECONDS = 600.0
"""How long the row sides of a served version are kept up to date after it was stopped."""


class VersionState(Enum):
    """PROCESSING until all its rows are in the store, then ACTIVE, then STOPPED. FAILED: the version's note says
    why."""

    PROCESSING = "processing"
    ACTIVE = "active"
    STOPPED = "stopped"
    FAILED = "failed"


class Origin(Enum):
    """Who deployed a version: the file that the service config names, or a person's command."""

    FILE = "file"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class ConfigVersion:
    """A deployed sync config. `id` grows with each deployment. Times are in seconds since 1970, 0 for what has not
    happened."""

    id: int
    yaml: str
    state: VersionState
    origin: Origin
    created: float
    activated: float
    stopped: float
    note: str


@dataclass(frozen=True, slots=True)
class OwnConfig:
    """The sync config file that an endpoint was started with, and its row sides (name to digest).

    During a rollout, endpoints with the old file and with the new one run side by side, and each serves its own. After
    another replicator's file has replaced its file, an endpoint goes on serving the old one for `keep_seconds`, as long
    as its row sides are complete. A config that a command deploys is served by every endpoint at once.
    """

    yaml: str
    sides: Mapping[str, str]
    keep_seconds: float = KEEP_STOPPED_SECONDS

    def complete(self, sides: Mapping[str, str]) -> bool:
        """Whether all its row sides are among `sides`."""
        return self.sides.items() <= sides.items()


class VersionStore(Protocol):
    """Versions of the sync config. Any process may deploy one; the replicator that holds the lease processes it."""

    def versions(self) -> list[ConfigVersion]:
        """All versions, oldest first."""

    def deploy(self, yaml: str, origin: Origin) -> ConfigVersion:
        """Create a PROCESSING version and wake the replicator. Stops another version that is PROCESSING. If `yaml` is
        the text of the PROCESSING version, or of the ACTIVE one when nothing is PROCESSING, returns that version and
        creates none."""

    def activate(self, lease: Lease, version: int, sides: Mapping[str, str]) -> Checkpoint:
        """Serve `version` from now on and stop the one before, in one transaction that moves the checkpoint. `sides`
        (name to digest) become complete; row sides that were complete before stay so until `retire`."""

    def mark_version(self, lease: Lease, version: int, state: VersionState, note: str) -> None:
        """Set state and note of a version that is not served: PROCESSING and how far, or STOPPED or FAILED and why."""

    def complete_sides(self) -> dict[str, str]:
        """Row sides (name to digest) whose rows are all in the store and are kept up to date."""

    def begin_sides(self, lease: Lease, sides: Mapping[str, str]) -> None:
        """Record row sides that are about to be built, before anything of them is written."""

    def unfinished_sides(self) -> list[str]:
        """Names of row sides that are being built or removed, of which the store may hold something."""

    def retire(self, lease: Lease, sides: Sequence[str], limit: int) -> bool:
        """Do one step of removing row sides: they stop being complete, their buckets and lookups are deleted, and
        current rows lose their memberships, at most `limit` rows per call. Returns True while more is left."""
