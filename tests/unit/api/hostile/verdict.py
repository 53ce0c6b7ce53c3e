"""What came back to a hostile client, and whether it should have."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support import rsocket_client as client

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [A-Za-z' -]*\r\n")
_EXPECTED = {100, 101, 200}
"""What is answered to those who said nothing wrong after all."""
_VARYING = re.compile(r"(?<=type )0x\w+|\d+")
_INNER = ("Something went wrong", "the service can't reach", "the service is not able")
"""What is told of failures of ours."""


@dataclass(slots=True)
class ReplicatorStatus:
    """`statuses` of HTTP, `closes` of the websocket, `errors` of RSocket in their order; `wrong` says what should never
    have come."""

    statuses: list[int] = field(default_factory=list)
    closes: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wrong: str = ""


def heard(content: bytes) -> ReplicatorStatus:
    """What the bytes say that an endpoint has answered."""
    found = ReplicatorStatus([int(status) for status in _STATUS.findall(content)])
    if content and not content.startswith(b"HTTP/1.1 "):
        found.wrong = "the answer is not HTTP"
    expected = _EXPECTED | {503} if b"(HW_6118)" in content else _EXPECTED  # an upload that waits for the operator
    strange = [status for status in found.statuses if status not in expected and not 400 <= status < 500]
    if strange:
        found.wrong = f"a status {strange[0]}"
    if 101 in found.statuses:
        _, _, rest = content[content.index(b"HTTP/1.1 101 ") :].partition(b"\r\n\r\n")
        for opcode, payload in _frames(rest):
            _take(found, opcode, payload)
    return found


def _take(found: ReplicatorStatus, opcode: int, payload: bytes) -> None:
    if opcode == 8:
        found.closes.append(struct.unpack_from(">H", payload)[0] if len(payload) > 1 else 1005)
    elif opcode == 2 and len(payload) > 10 and struct.unpack_from(">H", payload, 4)[0] >> 10 == client.ERROR:
        text = payload[10:].decode("utf-8", "replace")
        found.errors.append(text.partition("]")[0].strip("[") if text.startswith("[") else _VARYING.sub("…", text))
        if any(words in text for words in _INNER):
            found.wrong = text


def _frames(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The frames of a websocket's server, as far as they are whole."""
    at = 0
    while at + 2 <= len(content):
        opcode, length = content[at] & 15, content[at + 1] & 127
        at += 2
        if length > 125:
            width = 2 if length == 126 else 8
            length = int.from_bytes(content[at : at + width], "big")
            at += width
        if at + length > len(content):
            return
        yield opcode, content[at : at + length]
        at += length
