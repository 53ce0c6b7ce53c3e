"""Several processes of one endpoint (workers) ask each other over Unix sockets, so that whichever of them a request
reaches can answer for all."""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

WAIT_SECONDS = 2.0
"""How long a process may take to answer. One that is not ready, or hangs, is left out."""

_LONGEST = 100  # bytes of a question
_LENGTH = 8  # bytes before an answer that say how long it is, since a process may end while it sends

Answers = Mapping[str, Callable[[], bytes]]
"""What a process can be asked, and what gives the answer. It is called in a thread of its own."""

_log = logging.getLogger(__name__)


class _AnswerServer(socketserver.ThreadingUnixStreamServer):
    """Answers everybody who connects and sends a line with a question."""

    daemon_threads = True

    def __init__(self, path: Path, answers: Answers) -> None:
        self.answers = answers
        path.unlink(missing_ok=True)  # of the process that had this number before
        super().__init__(str(path), _AnswerHandler)


class _AnswerHandler(socketserver.StreamRequestHandler):
    timeout = WAIT_SECONDS

    def handle(self) -> None:
        assert isinstance(self.server, _AnswerServer)
        answer = self.server.answers[self.rfile.readline(_LONGEST).decode().strip()]()
        self.wfile.write(len(answer).to_bytes(_LENGTH) + answer)


@contextmanager
def answering(directory: Path, number: int, answers: Answers) -> Iterator[None]:
    """Answer the other processes while the context is open, if a socket can be created."""
    try:
        listening = _AnswerServer(_path(directory, number), answers)
    except OSError as error:
        _log.warning("cannot listen for other workers: %s", error)
        yield
        return
    with listening as server:
        thread = threading.Thread(target=server.serve_forever, name="headwater-workers", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True, slots=True)
class Workers:
    """All processes of an endpoint, which are numbered from 1 to `count`, and the directory of their sockets."""

    directory: Path
    count: int

    def ask(self, question: str) -> Iterator[tuple[int, bytes]]:
        """The answer of each process, this one included, with its number. Blocking."""
        for number in range(1, self.count + 1):
            answer = _request(_path(self.directory, number), question)
            if answer:
                yield number, answer


def _request(path: Path, question: str) -> bytes:
    received = bytearray()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(WAIT_SECONDS)
            connection.connect(str(path))
            connection.sendall(f"{question}\n".encode())
            while part := connection.recv(1 << 16):
                received += part
        length = int.from_bytes(received[:_LENGTH])
        if len(received) != _LENGTH + length:
            raise ConnectionError("its answer is cut short")
    except OSError as error:  # also a time-out
        _log.warning("%s: %s did not answer, its figures are missing (%s)", question, path.stem, error)
        return b""
    return bytes(received[_LENGTH:])


def _path(directory: Path, number: int) -> Path:
    return directory / f"worker-{number}.sock"
