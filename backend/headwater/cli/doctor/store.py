"""Checks the store: whether it can be reached, has a format that we know, and has room."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from headwater.cli.doctor.result import Level, Result, of_error, of_finding, ok
from headwater.cli.source.status import StoreState, disk_findings, disk_of, read_store
from headwater.config.model import ServiceConfig
from headwater.errors import HeadwaterError
from headwater.storage.address import SqliteAddress
from headwater.storage.contract.stats import Lacking
from headwater.storage.open import open_backend


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
    return kept, found


def _disk(config: ServiceConfig) -> Iterator[Result]:
    if not isinstance(config.storage, SqliteAddress):
        return
    findings = disk_findings(config)
    yield from (of_finding("disk", each) for each in findings)
    if not findings:
        free = shutil.disk_usage(disk_of(config.storage)).free
        yield ok("disk", f"{free / 1e9:,.1f} GB are free on the disk of the store, which can be written")


def _mended(lacking: Lacking) -> str:
    if lacking.sql:
        return f"run {'; '.join(lacking.sql)} as the owner of the database"
    return "give the user that Headwater runs as the right to write there, or set storage.path"
