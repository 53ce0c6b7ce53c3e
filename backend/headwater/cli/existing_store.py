"""Opens the store of a service config, for commands that need one to be there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime

from headwater.cli.config import ServiceConfig
from headwater.errors import HeadwaterError
from headwater.storage.contract.versions import ConfigVersion, VersionState
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter
from headwater.storage.store import Store


def store_of(config: ServiceConfig) -> Store:
    """The configured store. Raises HW_8101: a missing store is more likely a wrong path than a wish to create one."""
    store = open_store(config.storage)
    if not store.exists():
        fix = "start `headwater serve`, which creates it"
        raise HeadwaterError("there is no store yet", str(config.storage), fix, code="HW_8101")
    return store


@contextmanager
def existing_store(config: ServiceConfig) -> Iterator[StoreWriter]:
    """The configured store, open during the context. Raises HW_8101."""
    with closing(store_of(config).open_writer()) as writer:
        yield writer


def served(versions: Sequence[ConfigVersion]) -> ConfigVersion | None:
    """The version that devices are served."""
    return next((version for version in versions if version.state is VersionState.ACTIVE), None)


def find(versions: Sequence[ConfigVersion], number: int) -> ConfigVersion:
    """The version with this id. Raises HW_8102."""
    for version in versions:
        if version.id == number:
            return version
    known = ", ".join(str(version.id) for version in versions[-10:]) or "none"
    raise HeadwaterError(
        f"there is no version {number}", f"latest versions: {known}", "see `headwater rules versions`", code="HW_8102"
    )


def when(seconds: float) -> str:
    """A local date and time for people; empty for what has not happened."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S") if seconds else ""
