"""The interface for versions of the sync config: which are deployed, which one is served, and which bucket
definitions are complete.

A bucket definition here is also one of a lookup: what rows of source tables produce for it. It is identified by the
name and digest that the rules give it, so versions share the definitions that they have in common. Each source has the
definitions that read tables of its tag, and they are complete for each by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from headwater.errors import HeadwaterError

KEEP_STOPPED_SECONDS = 600.0
"""How long the bucket definitions of a served version are kept up to date after it was stopped."""


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
    happened. `note` is the service's, `message` that of the `author`."""

    id: int
    yaml: str
    state: VersionState
    origin: Origin
    created: float
    activated: float
    stopped: float
    note: str
    author: str = ""
    message: str = ""


class NewerVersionError(HeadwaterError):
    """A version was to be deployed upon the newest one as its author saw it, and there is a newer one."""

    code = "HW_6211"


class NotProcessingError(HeadwaterError):
    """A version can't be cancelled, since it is not being processed."""

    code = "HW_6212"


@dataclass(frozen=True, slots=True)
class OwnConfig:
    """The sync config file that an endpoint was started with, and its bucket definitions (name to digest).

    During a rollout, endpoints with the old file and with the new one run side by side, and each serves its own. After
    another replicator's file has replaced its file, an endpoint goes on serving the old one for `keep_seconds`, as long
    as its bucket definitions are complete. A config that a command deploys is served by every endpoint at once.
    """

    yaml: str
    definitions: Mapping[str, str]
    keep_seconds: float = KEEP_STOPPED_SECONDS

    def complete(self, definitions: Mapping[str, str]) -> bool:
        """Whether all its bucket definitions are among `definitions`."""
        return self.definitions.items() <= definitions.items()
