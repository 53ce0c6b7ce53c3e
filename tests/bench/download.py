"""One client downloads a large bucket, beside a file of the same size over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable

import uvicorn
import zstandard
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from tests.bench import data, report
from tests.bench.service import BenchService, Meter, bench_service
from tests.support.fix_service import free_port


def run(ops: int) -> None:
    with bench_service(fsync="off") as service:
        service.serve_ready(
            data.STREAMS, data.TABLE, data.insert(ops, owners=1), "create publication headwater for table items"
        )
        for encoding in DECODERS:
            report.heading(f"download, one client, {ops:,} ops of one bucket, {encoding}")
            for name in ("first", "again"):
                _measure(service, ops, encoding, name)


def _measure(service: BenchService, ops: int, encoding: str, name: str) -> None:
    stream = service.stream("u0", encoding)
    with Meter(service.pid).measure() as usage:
        size = _receive(stream, DECODERS[encoding]())
    yardstick = _over_http(size)
    report.line(f"{name}: until complete", ops / usage.seconds, "ops/s", "file over HTTP", ops / yardstick)
    report.line(f"{name}: bytes", size / usage.seconds / 1e6, "MB/s", "file over HTTP", size / yardstick / 1e6)
    report.usage(usage, ops / 1e6)


Decode = Callable[[bytes], bytes]

DECODERS: dict[str, Callable[[], Decode]] = {
    "identity": lambda: lambda part: part,
    "zstd": lambda: zstandard.ZstdDecompressor().decompressobj().decompress,
    "gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16).decompress,
}


def _receive(stream: socket.socket, decode: Decode) -> int:
    """Read to the end of the checkpoint; bytes received, as they came."""
    size, tail = 0, b""
    with contextlib.closing(stream), http.client.HTTPResponse(stream, method="POST") as response:
        response.begin()
        while b"checkpoint_complete" not in tail:
            received = response.read1(1 << 20)
            assert received, "the stream ended early"
            size += len(received)
            tail = tail[-64:] + decode(received)[-256:]
    return size


def _over_http(size: int) -> float:
    """Seconds that a plain server of the same kind takes for so many bytes."""
    block = bytes(1 << 20)

    async def blocks(_: Request) -> StreamingResponse:
        async def send() -> AsyncIterator[bytes]:
            for _ in range(size // len(block) + 1):
                yield block

        return StreamingResponse(send())

    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(Starlette(routes=[Route("/", blocks)]), host="127.0.0.1", port=port, log_level="error")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    started = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        while stream.recv(1 << 20):
            pass
    seconds = time.perf_counter() - started
    server.should_exit = True
    thread.join()
    return seconds
