"""`headwater migrate`: upgrades a store to the format of this version before a process opens it."""

from __future__ import annotations

import click

from headwater.config.model import ServiceConfig
from headwater.errors import HeadwaterError
from headwater.storage.open import open_backend


class NoWayDownError(HeadwaterError):
    """A store can't be converted to an older format."""

    code = "HW_8104"


def migrate(config: ServiceConfig, direction: str) -> None:
    """Upgrade a store by opening it. Raises NoWayDownError for `down`, and StoreError for a store of a newer format."""
    if direction == "down":
        raise NoWayDownError(
            "a store can't be converted to an older format",
            str(config.storage),
            "restore a backup from before the upgrade, or let the older version make a new store: devices"
            " download what differs",
        )
    existed = open_backend(config.storage).exists()
    open_backend(config.storage).open_store().close()
    done = "has this version's format" if existed else "was created"
    click.echo(f"the store at {config.storage} {done}")
