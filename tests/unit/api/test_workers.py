"""The processes of an endpoint ask each other, and one that can't answer hinders nobody."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.api.workers import Workers, answering


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:  # whose path is short enough for sockets
        yield Path(made)


def test_all_processes_answer(directory: Path) -> None:
    with (
        answering(directory, 1, {"names": lambda: b"ann"}),
        answering(directory, 2, {"names": lambda: b"b" * 1_000_000}),
    ):
        assert list(Workers(directory, 2).ask("names")) == [(1, b"ann"), (2, b"b" * 1_000_000)]


def test_truncated_answer_is_left_out(directory: Path) -> None:
    whole = bytearray()
    with answering(directory, 1, {"names": lambda: b"ann"}):
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(str(directory / "worker-1.sock"))
            asked.sendall(b"names\n")
            while part := asked.recv(1024):
                whole += part
        with socket.socket(socket.AF_UNIX) as dying:
            dying.bind(str(directory / "worker-2.sock"))
            dying.listen()

            def die() -> None:
                conn, _ = dying.accept()
                with conn:
                    conn.recv(1024)
                    conn.sendall(whole[:-1])

            thread = threading.Thread(target=die)
            thread.start()
            assert list(Workers(directory, 2).ask("names")) == [(1, b"ann")]
            thread.join()


def test_no_place_for_the_socket(directory: Path) -> None:
    gone = directory / "gone"
    with answering(gone, 1, {"names": lambda: b"ann"}):
        assert list(Workers(gone, 1).ask("names")) == []
