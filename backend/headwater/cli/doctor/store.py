"""Checks the store: whether it can be reached, has a format that we know, and has room."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from headwater.cli.doctor.result import Level, Result, of_error, ok
from headwater.cli.source.status import StoreState, read_store
from headwater.config.model import ServiceConfig
from headwater.errors import HeadwaterError
from headwater.source.readiness.finding import span
from headwater.storage.address import SqliteAddress
from headwater.storage.contract.stats import Lacking
from headwater.storage.open import open_backend

_LEAST_FREE, _LOW_FREE = 256 << 20, 4 << 30


def check_store(config: ServiceConfig) -> tuple[StoreState | None, list[Result]]:
    """What the store records, if there is one."""
    found = [*_disk(config)]
    try:
        backend = open_backend(config.storage)
        if config.sources:
            backend.raise_if_published(config.source().publications)
        lacking = [Result("store", Level.FAIL, each.what, _mended(each), each.sql) for each in backend.lacking()]
        if lacking:
            return None, [*found, *lacking]
        if not backend.exists():
            return None, [*found, ok("store", f"{config.storage}: none yet, and the first start may create it")]
        if (older := backend.older_format()) is not None:
            fix = "start this version when no older one has to use the store any more"
            what = f"{config.storage}: format {older}, the next start upgrades it"
            return None, [*found, Result("store", Level.WARN, what, fix)]
        note = backend.seal_note()
        if note is not None:
            fix = "use the store that it was exported to, or run `headwater store unseal`"
            return None, [*found, Result("store", Level.FAIL, f"{config.storage} is sealed: {note}", fix)]
        kept = read_store(config)
    except HeadwaterError as error:
        return None, [*found, of_error("store", error)]
    found.append(ok("store", f"{config.storage}: can be read, in a format of this version"))
    if kept is not None and kept.health is not None and kept.health.cause is not None:
        cause = kept.health.cause
        what = f"replication was held up {span(time.time() - cause.at)} ago: {cause}"
        found.append(Result("replica", Level.FAIL, what, "see `headwater source status`"))
    elif kept is not None and kept.health is not None:
        found.append(ok("replica", f"replication is {kept.health.state.value}"))
    return kept, found


def _disk(config: ServiceConfig) -> Iterator[Result]:
    if not isinstance(config.storage, SqliteAddress):
        return
    directory = _existing(Path(config.storage.directory))
    free = shutil.disk_usage(directory).free
    what = f"{free / 1e9:,.1f} GB are free on the disk of the store"
    fix = "free space, or set storage.path to another disk: the store stops taking changes when it is full"
    if free < _LEAST_FREE:
        yield Result("disk", Level.FAIL, what, fix)
    elif free < _LOW_FREE:
        yield Result("disk", Level.WARN, what, fix)
    else:
        yield ok("disk", what)


def _mended(lacking: Lacking) -> str:
    if lacking.sql:
        return f"run {'; '.join(lacking.sql)} as the owner of the database"
    return "give the user that Headwater runs as the right to write there, or set storage.path"


def _existing(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
