"""A connection pooler of the kind that says nothing: it drops what a client wants its session to be, and lends it an
ordinary one."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104
_PASSED_ON = {"user", "database", "client_encoding", "application_name"}


@contextlib.contextmanager
def silent_pooler(server_port: int) -> Iterator[int]:
    """The port of a pooler before a Postgres on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener, server_port), daemon=True).start()
        yield listener.getsockname()[1]
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept()


def _serve(listener: socket.socket, server_port: int) -> None:
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_lend, args=(near, server_port), daemon=True).start()


def _lend(near: socket.socket, server_port: int) -> None:
    with contextlib.suppress(OSError), near, socket.create_connection(("127.0.0.1", server_port)) as far:
        far.sendall(_startup(_first_message(near)))
        threading.Thread(target=_carry, args=(far, near), daemon=True).start()
        _carry(near, far)


def _first_message(near: socket.socket) -> bytes:
    while True:
        (length,) = struct.unpack("!I", near.recv(4, socket.MSG_WAITALL))
        body = near.recv(length - 4, socket.MSG_WAITALL)
        if struct.unpack_from("!I", body)[0] not in {_SSL_REQUEST, _GSS_REQUEST}:
            return body
        near.sendall(b"N")


def _startup(body: bytes) -> bytes:
    texts = body[4:].rstrip(b"\0").split(b"\0")
    wanted = zip(texts[::2], texts[1::2], strict=True)
    kept = b"".join(b"%s\0%s\0" % pair for pair in wanted if pair[0].decode() in _PASSED_ON)
    return struct.pack("!I", len(kept) + 9) + body[:4] + kept + b"\0"


def _carry(here: socket.socket, there: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := here.recv(65536):
            there.sendall(data)
        there.shutdown(socket.SHUT_WR)
