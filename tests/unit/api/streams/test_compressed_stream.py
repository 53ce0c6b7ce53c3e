"""Compressed streams over HTTP, read by a stock client; and what streams of one process share."""

from __future__ import annotations

import gzip
import json
import random
import time
from contextlib import ExitStack

import pytest

from tests.support.fix_api import Endpoint, make_token
from tests.support.memory_store import MemoryStore
from tests.unit.api.by_hand import StartEndpoint

ENCODINGS = ["identity", "gzip", "zstd"]
each_encoding = pytest.mark.parametrize("encoding", ENCODINGS)


def fill(store: MemoryStore, bucket: str, rows: int = 3500) -> None:
    """Several chunks, of text that does not compress well."""
    source = random.Random(bucket)
    for row in range(rows):
        store.put(bucket, str(row), json.dumps({"text": source.randbytes(40).hex() + "ü😀"}))
    store.commit()


@each_encoding
def test_several_chunks_and_a_later_change(endpoint: Endpoint, memory_store: MemoryStore, encoding: str) -> None:
    mine = endpoint.bucket("mine", "u1")
    fill(memory_store, mine)
    with endpoint.stream(encoding=encoding) as stream:
        assert stream.response.headers.get("content-encoding", "identity") == encoding
        assert stream.completed().rows == memory_store.rows([mine])
        memory_store.put(mine, "late", '{"v":1}')
        memory_store.commit()
        assert stream.completed(2).rows == memory_store.rows([mine])


@each_encoding
def test_encodings_carry_the_same_bytes(endpoint: Endpoint, memory_store: MemoryStore, encoding: str) -> None:
    fill(memory_store, endpoint.bucket("mine", "u1"))

    def received(encoding: str) -> bytes:
        body = b""
        headers = {"authorization": f"Token {make_token()}", "accept-encoding": encoding}
        with endpoint.http.stream("POST", "/sync/stream", json={"raw_data": True}, headers=headers) as response:
            for part in response.iter_bytes():
                body += part
                if body.endswith(b'"}}\n') and b"checkpoint_complete" in body:
                    break
        return body

    first = received(encoding)
    assert first == received(encoding)
    assert first.replace(b" " * 17, b"") == received("identity")  # zstd's pieces begin with spaces


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_compressed_size(endpoint: Endpoint, memory_store: MemoryStore, encoding: str) -> None:
    mine = endpoint.bucket("mine", "u1")
    for row in range(3000):
        memory_store.put(mine, str(row), json.dumps({"text": f"row {row} of some words"}))
    memory_store.commit()
    sizes = {}
    for name in (encoding, "identity"):
        with endpoint.stream(encoding=name) as stream:
            stream.completed()
            sizes[name] = stream.response.num_bytes_downloaded
    assert sizes[encoding] < sizes["identity"] / 2


def test_ended_stream_is_a_whole_gzip_file(endpoint: Endpoint, memory_store: MemoryStore) -> None:
    fill(memory_store, endpoint.bucket("mine", "u1"))
    headers = {"authorization": f"Token {make_token()}", "accept-encoding": "gzip"}
    raw = b""
    with endpoint.http.stream("POST", "/sync/stream", json={"raw_data": True}, headers=headers) as response:
        parts = response.iter_raw()
        raw += next(parts)
        endpoint.terminate()
        raw += b"".join(parts)
    lines = gzip.decompress(raw).splitlines()
    assert list(json.loads(lines[0])) == ["checkpoint"]


@each_encoding
def test_expired_token_within_clock_tolerance(endpoint: Endpoint, encoding: str) -> None:
    now = int(time.time())
    with endpoint.stream(token=make_token(iat=now - 600, exp=now - 5), encoding=encoding) as stream:
        assert stream.to_the_end().lines == [{"token_expires_in": 0}]


def test_refusal_is_not_compressed(endpoint: Endpoint) -> None:
    refused = endpoint.post(token=make_token(iat=0, exp=1_000_000_000), accept_encoding="gzip")
    assert refused.status_code == 401
    assert "content-encoding" not in refused.headers


def test_no_acceptable_encoding(endpoint: Endpoint) -> None:
    answer = endpoint.post(accept_encoding="br, identity;q=0")
    assert answer.status_code == 406
    assert answer.json()["error"]["code"] == "HW_6003"


@each_encoding
def test_clients_share_reads_of_the_store(endpoint: Endpoint, memory_store: MemoryStore, encoding: str) -> None:
    mine = endpoint.bucket("mine", "u1")
    fill(memory_store, mine)
    memory_store.reads.clear()
    with ExitStack() as open_streams:
        for _ in range(4):
            stream = open_streams.enter_context(endpoint.stream(encoding=encoding))
            assert stream.completed().rows == memory_store.rows([mine])
    assert memory_store.reads.count(f"chunk {mine}") == 4


@each_encoding
def test_disconnect_in_the_middle_spares_the_next(endpoint: Endpoint, memory_store: MemoryStore, encoding: str) -> None:
    mine = endpoint.bucket("mine", "u1")
    fill(memory_store, mine)
    for _ in range(2):
        with endpoint.stream(encoding=encoding) as stream:
            stream.until(lambda client: "data" in client.kinds())
    with endpoint.stream(encoding=encoding) as stream:
        assert stream.completed().rows == memory_store.rows([mine])


@each_encoding
def test_raw_data(endpoint: Endpoint, memory_store: MemoryStore, encoding: str) -> None:
    mine = endpoint.bucket("mine", "u1")
    fill(memory_store, mine, rows=200)
    headers = {"authorization": f"Token {make_token()}", "accept-encoding": encoding}
    for raw, kind in ((True, str), (False, dict), (True, str), (False, dict)):
        body = ""
        with endpoint.http.stream("POST", "/sync/stream", json={"raw_data": raw}, headers=headers) as response:
            for part in response.iter_text():
                body += part
                if "checkpoint_complete" in body:
                    break
        ops = json.loads(body.splitlines()[1])["data"]["data"]
        assert {type(op["data"]) for op in ops} == {kind}


def test_without_cache(start_endpoint: StartEndpoint, memory_store: MemoryStore) -> None:
    endpoint = start_endpoint(memory_store, chunk_cache_bytes=0)
    mine = endpoint.bucket("mine", "u1")
    fill(memory_store, mine)
    for encoding in ENCODINGS:
        with endpoint.stream(encoding=encoding) as stream:
            assert stream.completed().rows == memory_store.rows([mine])
    assert memory_store.reads.count(f"chunk {mine}") == 3 * 4
