"""Fixtures of several of these files."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.pipeline.jobs import BulkJobs
from tests.integration.followed_source import SOURCE, FollowedSource, FollowSource, SmallDisk
from tests.support.changed_source import Device
from tests.support.fix_headwater import WATCHED, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.network import Network
from tests.support.sync_configs import NOTES_AND_OTHERS


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], SmallDisk]]:
    """`small_disk(megabytes)`. Skips the test where nobody may mount one."""
    with ExitStack() as stack:

        def make(megabytes: int) -> SmallDisk:
            path = tmp_path / "small"
            path.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
            try:
                subprocess.run(command, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                pytest.skip("needs the right to mount a file system, to have one that is full")
            stack.callback(subprocess.run, ["umount", "-l", str(path)], check=True)
            return SmallDisk(path)

        yield make


@pytest.fixture
def follow_source(
    small_disk: Callable[[int], SmallDisk],  # which goes after what is on it
    source_db: SourceDb,
    bulk: BulkJobs,
    tmp_path: Path,
) -> Iterator[FollowSource]:
    with ExitStack() as stack:

        def make(server: EmbeddedPostgres | None = None, directory: Path = tmp_path / "store") -> FollowedSource:
            if server is None:
                source = source_db
                stack.callback(lambda: source.execute("drop owned by follower; drop role follower"))
            else:
                source = SourceDb(server, "postgres")
                stack.callback(lambda: source.connection.close())  # noqa: PLW0108 - the last one of several
            source.execute(SOURCE)
            network = stack.enter_context(Network(source.server.port))
            deployment = Deployment(
                source,
                directory,
                NOTES_AND_OTHERS,
                bulk,
                user="follower",
                password="right",
                port=network.port,
                silence_seconds=4.0,
                intervals=WATCHED,
            )
            stack.callback(deployment.close_whole)
            deployment.start()
            followed = FollowedSource(source.server, source, network, deployment, Device(deployment))
            deployment.caught_up()
            assert followed.device.rows() == followed.truth()
            return followed

        yield make
