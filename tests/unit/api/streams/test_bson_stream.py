"""The stream as BSON documents: the same lines as in NDJSON."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Chunk
from headwater.sync.formats import Bson, Ndjson
from tests.support.fix_api import Endpoint, make_token
from tests.support.memory_store import MemoryStore

TYPES_OF_NUMBERS = {0x10: "int32", 0x12: "int64", 0x01: "double"}


def documents(endpoint: Endpoint, until: str, **headers: str) -> Iterator[tuple[bytes, dict[str, object]]]:
    """Each document of a new stream, as it came and as it reads, up to the first of a kind."""
    sent = {
        "authorization": f"Token {make_token()}",
        "accept": Bson.media_type,
        "accept-encoding": "identity",
    } | headers
    with endpoint.http.stream("POST", "/sync/stream", json={}, headers=sent) as response:
        assert response.headers["content-type"] == Bson.media_type
        held = b""
        for part in response.iter_bytes():
            held += part
            while len(held) >= 4 and len(held) >= (length := struct.unpack_from("<i", held)[0]):
                document, held = held[:length], held[length:]
                fields = bson.decode(document)
                yield document, fields
                if until in fields:
                    return


def text_lines(endpoint: Endpoint, until: str) -> list[dict[str, object]]:
    headers = {"authorization": f"Token {make_token()}"}
    lines = []
    with endpoint.http.stream("POST", "/sync/stream", json={"raw_data": True}, headers=headers) as response:
        for line in response.iter_lines():
            lines.append(json.loads(line))
            if until in lines[-1]:
                break
    return lines


@pytest.fixture
def filled(memory_store: MemoryStore, endpoint: Endpoint) -> Endpoint:
    bucket = endpoint.bucket("mine", "u1")
    for row in range(2500):
        memory_store.put(bucket, f"r{row}", json.dumps({"id": f"r{row}", "text": "ä€\U0001f600\\u0000", "n": row}))
    memory_store.remove(bucket, "r7")
    memory_store.commit()
    return endpoint


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd, gzip", "zstd"])
def test_same_lines_as_ndjson(filled: Endpoint, encoding: str) -> None:
    came = [fields for _, fields in documents(filled, "checkpoint_complete", **{"accept-encoding": encoding})]
    assert came == text_lines(filled, "checkpoint_complete")


def test_numbers_are_integers(filled: Endpoint) -> None:
    """Clients refuse doubles where they look for whole numbers."""
    kinds = set()
    for document, _ in documents(filled, "checkpoint_complete"):
        for name in (b"checksum", b"count", b"priority"):
            at = document.find(name + b"\0")
            if at > 0:
                kinds.add(TYPES_OF_NUMBERS[document[at - 1]])
    assert "double" not in kinds
    assert kinds


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.text(st.characters(codec="utf-8")), max_size=3), max_size=5))
def test_rows_stay_text(rows: list[Mapping[str, str]]) -> None:
    ops = [
        json.dumps({"op_id": str(at), "op": "PUT", "checksum": 2**32 - at, "data": json.dumps(row)})
        for at, row in enumerate(rows, 1)
    ]
    chunk = Chunk(",".join(ops).encode(), len(ops), OpId(len(ops)), more=False)
    assert bson.decode(Bson().data("b", OpId(0), chunk)) == json.loads(Ndjson(raw=True).data("b", OpId(0), chunk))
