"""Base backups of a source, and sources restored from them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.storm.setup import SETTLE_SECONDS, StormSetup
from tests.support.waiting import wait_until


def take_backup(setup: StormSetup, number: int) -> Path | None:
    """A backup of the source's cluster; None where its programs have none of that name."""
    server = setup.server
    found = shutil.which("pg_basebackup", path=str(server.binaries.bin_dir))
    if found is None:
        return None
    backup = server.data_dir.with_name(f"{server.data_dir.name}-backup-{number}")
    address = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres"]
    subprocess.run([found, *address, "-D", backup, "-c", "fast"], check=True, capture_output=True)
    return backup


def restore(setup: StormSetup, backup: Path) -> None:
    """Put the cluster back to a backup, in its place and at its port, and wait until the service knows. Slots are gone,
    as backups have none."""
    server = setup.server
    server.stop()
    shutil.rmtree(server.data_dir)
    backup.rename(server.data_dir)
    server.start()
    setup.reconnect()
    # positions of the log that is gone lie beyond its end now
    wait_until(lambda: 0 < setup.stored() <= setup.position(), "the service to start at the backup", SETTLE_SECONDS)
