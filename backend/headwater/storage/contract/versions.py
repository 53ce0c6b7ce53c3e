"""What every store promises of sync configs: versions, which of them is served, and which row sides are complete.

A row side is what rows of source tables give for one bucket definition or one lookup. It is known by the name and
the full digest that the rules give it, so two versions share what they have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headwater.storage.contract.store import Checkpoint, Lease

KEEP_STOPPED_SECONDS = 600.0
"""How long the row sides of a version that was served are kept right after it was stopped."""


class VersionState(Enum):
    """PROCESSING until its rows are all there, then ACTIVE, then STOPPED. FAILED says why in the version's note."""

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
    """A deployed sync config. `id` grows with each; times in seconds since 1970, 0 for what has not happened."""

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

    While files are rolled out, endpoints with the old one and with the new one run side by side, each serving its own:
    one whose file another replicator's file has replaced serves it for `keep_seconds` more, as long as its row sides
    are complete. What a command deploys is served by all at once.
    """

    yaml: str
    sides: Mapping[str, str]
    keep_seconds: float = KEEP_STOPPED_SECONDS

    def complete(self, sides: Mapping[str, str]) -> bool:
        """Whether all of it is among these row sides."""
        return self.sides.items() <= sides.items()


class VersionStore(Protocol):
    """Versions of the sync config. Any process may deploy; the replicator, who holds the lease, does the rest."""

    def versions(self) -> list[ConfigVersion]:
        """All, oldest first."""

    def deploy(self, yaml: str, origin: Origin) -> ConfigVersion:
        """A new PROCESSING version, and a wake-up for the replicator. Another one that was PROCESSING is stopped.
        The text of the PROCESSING version, or, when there is none, of the ACTIVE one, is no new version."""

    def activate(self, lease: Lease, version: int, sides: Mapping[str, str]) -> Checkpoint:
        """Serve `version` from now on and stop the one before, in one transaction that moves the checkpoint. `sides`
        (name to digest) are complete with it; those complete before stay so until `retire`."""

    def mark_version(self, lease: Lease, version: int, state: VersionState, note: str) -> None:
        """Say how a version that is not served stands: PROCESSING and how far, STOPPED or FAILED and why."""

    def complete_sides(self) -> dict[str, str]:
        """Row sides (name to digest) whose rows are all in the store, and are kept up to date."""

    def begin_sides(self, lease: Lease, sides: Mapping[str, str]) -> None:
        """Note row sides that are about to be built, before anything of them is written."""

    def unfinished_sides(self) -> list[str]:
        """Row sides of which the store may hold something, and which are not complete: being built, or on their way
        out."""

    def retire(self, lease: Lease, sides: Sequence[str], limit: int) -> bool:
        """A step towards forgetting row sides: they stop being complete, their buckets and lookups go, and current
        rows lose their membership in those buckets, at most `limit` rows a call. True while there is more to do."""
