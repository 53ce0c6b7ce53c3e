"""`headwater migrate`: bring a store to the format of this version, before the first process of a new version does."""

from __future__ import annotations

import click

from headwater.config import ServiceConfig
from headwater.errors import HeadwaterError
from headwater.storage.open import open_backend


class NoWayDownError(HeadwaterError):
    """A store is not turned into one of an older format."""

    code = "HW_8104"


def migrate(config: ServiceConfig, direction: str) -> None:
    """Up is what opening a store does. Raises NoWayDownError, and StoreError for a store of a newer format."""
    if direction == "down":
        raise NoWayDownError(
            "a store is not brought back to an older format",
            str(config.storage),
            "restore a backup from before the upgrade, or let the older version make a store of its own: devices"
            " download what differs",
        )
    existed = open_backend(config.storage).exists()
    open_backend(config.storage).open_store().close()
    done = "is of this version's format" if existed else "was made"
    click.echo(f"the store at {config.storage} {done}")
