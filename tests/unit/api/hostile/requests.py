"""HTTP requests with something wrong in them, for every route that there is."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.support.ruled_configs import REQUEST_EDITED, SERVED, STREAM_ADDED, WRONG
from tests.unit.api.hostile.conversation import Conversation, Credentials
from tests.unit.api.hostile.damage import damaged, split
from tests.unit.api.hostile.values import damaged_json

Header = tuple[bytes, bytes]

STREAM: Final[dict[str, Any]] = {
    "buckets": [{"name": 'todos.1|0["l1"]', "after": "12"}, {"name": "x", "after": "0"}],
    "include_checksum": True, "raw_data": True, "binary_data": True, "client_id": "c1",
    "parameters": {"a": {"b": [1]}}, "app_metadata": {"version": "1"},
    "streams": {"include_defaults": True, "subscriptions": [
        {"stream": "one", "parameters": {"list": "l1"}, "override_priority": 2},
        {"stream": "todos", "parameters": None, "override_priority": None},
    ]},
}  # fmt: skip
CHECKPOINT: Final[dict[str, Any]] = {"client_id": "c1", "checkpoint_request_id": "7"}
UPLOAD: Final[dict[str, Any]] = {
    "client_id": "c1",
    "transactions": [
        {"crud": [
            {"op_id": 1, "tx_id": 1, "op": "PUT", "type": "notes", "id": "n1", "data": {"title": "a", "n": 1}},
            {"op_id": 2, "tx_id": 1, "op": "PATCH", "type": "notes", "id": "n1", "data": {"n": 2}, "old": {"n": 1}},
        ]},
        {"crud": [{"op_id": 3, "tx_id": 2, "op": "DELETE", "type": "notes", "id": "n1"}]},
    ],
}  # fmt: skip
_OURS, _PUBLISHED, _RULES = "/api/headwater/v1", "/api/admin/v1", "/api/sync-rules/v1"
_CLIENT: Final = {"user": "u1", "parameters": {"a": 1}}
ADMIN: Final[Sequence[tuple[str, dict[str, Any] | None]]] = (
    (f"{_PUBLISHED}/status", None),
    (f"{_OURS}/progress", None),
    (f"{_OURS}/clients", None),
    (f"{_OURS}/terminate", {"user": "nobody", "client": "c1"}),
    (f"{_OURS}/revoke", {"kind": "jti", "value": "none"}),
    (f"{_OURS}/revocations", None),
    (f"{_OURS}/versions", None),
    (f"{_OURS}/versions/1", None),
    (f"{_OURS}/validate", {"content": STREAM_ADDED}),
    (f"{_OURS}/diff", {"content": STREAM_ADDED, "sample": 10}),
    (f"{_OURS}/preview", {"content": REQUEST_EDITED, "client": _CLIENT, "rows": 2}),
    (f"{_OURS}/compare", {"content": REQUEST_EDITED, "client": _CLIENT, "table": "todos"}),
    (f"{_OURS}/cost", {"content": STREAM_ADDED}),
    (f"{_OURS}/cases", {"case": {"name": "one", "client": _CLIENT, "expect": {"todos": {"rows": 1}}}}),
    (f"{_OURS}/cases/run", {"content": STREAM_ADDED, "names": []}),
    (f"{_OURS}/cases/delete", {"name": "none"}),
    (f"{_OURS}/changes", None),
    (f"{_OURS}/deploy/cancel", {"id": 99}),
    ("/studio/session", {"token": "none", "name": "Ada"}),
    ("/studio/", None),
    ("/studio/assets/x.js", None),
    (f"{_OURS}/deploy", {"content": WRONG}),
    (f"{_OURS}/rollback", {"id": 1}),
    (f"{_OURS}/explain/user", {"client": _CLIENT}),
    (f"{_OURS}/explain/row", {"client": _CLIENT, "table": "todos", "id": "t1"}),
    (f"{_OURS}/openapi.json", None),
    (f"{_PUBLISHED}/diagnostics", {"sync_rules_content": True}),
    (f"{_PUBLISHED}/schema", {}),
    (f"{_PUBLISHED}/validate", {"sync_rules": SERVED}),
    (f"{_PUBLISHED}/reprocess", {}),
    (f"{_PUBLISHED}/execute-sql", {"connection_id": "default", "sql": {"query": "select 1", "args": []}}),
    (f"{_RULES}/deploy", {"content": SERVED}),
    (f"{_RULES}/validate", {"content": STREAM_ADDED}),
    (f"{_RULES}/reprocess", {}),
    (f"{_RULES}/current", None),
)
CHANGING: Final = frozenset(path for path, _ in ADMIN if path.endswith(("/deploy", "/rollback", "/reprocess")))
"""What gives devices another sync config, which a replicator would follow."""

_METHODS: Final = (
    b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI", b"post", b"G\0T",
    b"BREW", b"PROPFIND", b"", b" ", b"GET GET", b"X" * 500,
)  # fmt: skip
_PATHS: Final = (
    b"/", b"*", b"", b"//", b"/sync/stream/", b"/sync/stream?x", b"/sync/../probes/liveness", b"/sync/%73tream",
    b"/sync/stream%00", b"/sync/stream#a", b"/%ff%fe", b"/%", b"/\xc3\xa9", b"/api", b"/api/", b"/api/x", b"/apix",
    b"/api/%2e%2e/sync/stream", b"/api/headwater/v1/versions/-1", b"/api/headwater/v1/versions/99999999999999999999",
    b"/api/headwater/v1/versions/%00", b"http://x/sync/stream", b"https://u:p@[::1]:99999/", b"x:443", b"///..//",
    b"/demo/", b"/metrics", b"/" + b"a" * 4000, b"/" + b"a/" * 3000, b"/" + b"y" * 9000, b"/;a=b", b"/\t", b"/a b",
)  # fmt: skip
_QUERIES: Final = (
    b"", b"client_id=", b"client_id=c1", b"client_id=%00", b"client_id=%ff", b"client_id=%ED%A0%80", b"client_id",
    b"client_id=a&client_id=b", b"client_id[]=a", b"client_id=" + b"a" * 1100, b"client_id=%C3%A9" * 40, b"=&=&;;%",
    b"client_id=" + b"a" * 7000, b"a=1&" * 1500, b"client_id=c1%0d%0aset-cookie:x", b"token=x", b"%zz", b"&" * 200,
)  # fmt: skip
_HEADERS: Final[Sequence[Header]] = (
    (b"content-length", b"0"), (b"content-length", b"5"), (b"content-length", b"-1"), (b"content-length", b"1" * 30),
    (b"content-length", b"0x10"), (b"content-length", b"5, 5"), (b"content-length", b""),
    (b"content-length", b"2000000"),
    (b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"gzip, chunked"), (b"transfer-encoding", b"identity"),
    (b"transfer-encoding", b"\x0bchunked"), (b"trailer", b"authorization"),
    (b"expect", b"100-continue"), (b"expect", b"200-ok"), (b"connection", b"close"), (b"connection", b"upgrade"),
    (b"connection", b"keep-alive, host"), (b"upgrade", b"h2c"), (b"upgrade", b"websocket"),
    (b"http2-settings", b"AAMA"),
    (b"host", b""), (b"host", b"a b"), (b"host", b"[::"), (b"host", b"x:99999"), (b"host", b"\xff"),
    (b"origin", b"https://evil.example"), (b"origin", b"\xff"), (b"origin", b"null"),
    (b"access-control-request-method", b"POST"), (b"access-control-request-method", b"\xff"),
    (b"access-control-request-headers", b"authorization, \xff"), (b"access-control-request-headers", b"a," * 500),
    (b"content-type", b"application/json; charset=utf-16"), (b"content-type", b"text/plain"),
    (b"content-type", b"\xff"),
    (b"content-type", b"application/yaml"), (b"content-type", b"multipart/form-data; boundary=x"),
    (b"content-type", b";;"),
    (b"content-encoding", b"gzip"), (b"accept", b"*/*;q=9"), (b"accept", b"application/vnd.powersync.bson-stream"),
    (b"accept", b"application/x-ndjson;q=0"), (b"accept", b"a/b;q=" + b"9" * 400), (b"accept", b",;,;q=,/" * 100),
    (b"accept-encoding", b"gzip"), (b"accept-encoding", b"zstd, gzip;q=0.5"), (b"accept-encoding", b"*;q=0"),
    (b"accept-encoding", b"identity;q=0"), (b"accept-encoding", b"br;q=x, \xff"),
    (b"accept-encoding", b"gzip;q=1.0000"),
    (b"x-user-agent", b"\xff" * 50), (b"x-user-agent", b"a" * 5000), (b"user-agent", b"\x80\x1b[31m"),
    (b"traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"), (b"traceparent", b"\xff"),
    (b"tracestate", b"=" * 999),
    (b"x-forwarded-for", b"\xff, 1.2.3.4"), (b"x-forwarded-proto", b"wss"), (b"forwarded", b"for=_x"),
    (b"authorization", b""), (b"authorization", b"Basic eDp5"), (b"authorization", b"Token  x"), (b"cookie", b"a=\xff"),
    (b"range", b"bytes=0-0"), (b"if-none-match", b"*"), (b"sec-websocket-key", b"x"), (b"x" * 300, b"y"), (b"", b"y"),
    (b"a b", b"c"), (b"a\0", b"b"), (b"x", b"a\0b"), (b"x", b"a\r\n b"), (b"x", b"a\nb: c"), (b"x", b"y" * 33_000),
)  # fmt: skip


@dataclass(slots=True)
class Request:
    """A request that is good until something is done to it."""

    method: bytes
    path: bytes
    headers: list[Header]
    body: bytes
    version: bytes = b"HTTP/1.1"
    chunked: bool = False

    def written(self, chance: random.Random) -> bytes:
        """As bytes, with its length unless a header says another one."""
        lines = [b" ".join((self.method, self.path, self.version))]
        lines += (name + b": " + value for name, value in self.headers)
        body = self.body
        if self.chunked:
            lines.append(b"transfer-encoding: chunked")
            body = _chunks(chance, body)
        elif body:
            lines.append(b"content-length: %d" % len(body))
        return b"\r\n".join([*lines, b"", body])


class HostileRequests:
    """Makes conversations of one to a few requests."""

    def __init__(self, chance: random.Random, credentials: Credentials, left_out: frozenset[str]) -> None:
        """`left_out` are paths of the admin routes that are not asked."""
        self._chance = chance
        self._credentials = credentials
        self._admin = [each for each in ADMIN if each[0] not in left_out]

    def body(self) -> Conversation:
        """A route that takes a document, with a document of its kind."""
        path, document = self._chance.choices(
            ((b"/sync/stream", STREAM), (b"/sync/checkpoint-request", CHECKPOINT), (b"/upload", UPLOAD)), (10, 7, 2)
        )[0]
        request = self._post(path, document)
        request.body = damaged_json(self._chance, document)
        return self._one(f"body {path.decode()}", request)

    def admin(self) -> Conversation:
        """What an operator may ask, whose client went mad."""
        path, document = self._chance.choice(self._admin)
        method = b"GET" if document is None else b"POST"
        headers = [(b"host", b"x"), (b"authorization", b"Token " + self._credentials.admin)]
        request = Request(method, path.encode(), headers, b"" if document is None else json.dumps(document).encode())
        if document is not None:
            headers.append((b"content-type", b"application/json"))
            request.body = damaged_json(self._chance, document)
        elif self._chance.random() < 0.5:
            request.path = damaged(self._chance, request.path, 1).replace(b"\r", b"").replace(b"\n", b"")
        if self._chance.random() < 0.1:
            self._other_token(request)
        return self._one("admin", request)

    def token(self) -> Conversation:
        """A token of somebody else, or of nobody."""
        request = self._good()
        self._other_token(request)
        return self._one("token", request)

    def headers(self) -> Conversation:
        request = self._good()
        for _ in range(self._chance.randint(1, 3)):
            self._chance.choice((_add_header, _add_header, _add_header, _drop_header, _damage_header, _many_headers))(
                request, self._chance
            )
        return self._one("headers", request)

    def address(self) -> Conversation:
        """Another method, path, query or version."""
        request = self._good()
        chance = self._chance
        match chance.randrange(5):
            case 0:
                request.method = chance.choice(_METHODS)
            case 1:
                request.path = chance.choice(_PATHS)
            case 2:
                request.path = b"/write-checkpoint2.json?" + chance.choice(_QUERIES)
                request.method, request.body = chance.choice((b"GET", b"GET", b"POST")), b""
            case 3:
                request.version = chance.choice(
                    (b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.2", b"http/1.1", b"", b"X")
                )
            case _:
                request.path = damaged(chance, request.path)
        return self._one("address", request)

    def framing(self) -> Conversation:
        """Chunks, lengths that lie, several requests in one go, the end in the middle."""
        chance = self._chance
        requests = [self._good() for _ in range(chance.choice((1, 1, 2, 3, 20)))]
        for request in requests:
            request.chunked = chance.random() < 0.4
            if chance.random() < 0.3:
                request.headers.append((b"content-length", b"%d" % chance.choice((0, 1, len(request.body) + 9, 10**9))))
            if chance.random() < 0.1:
                request.headers.append((b"content-encoding", b"gzip"))
                request.body = zlib.compress(request.body)
        content = b"".join(request.written(chance) for request in requests)
        if chance.random() < 0.3:
            content = content[: chance.randrange(len(content))]
        return Conversation("framing", split(chance, content))

    def raw(self) -> Conversation:
        """Damage anywhere in the bytes."""
        content = damaged(self._chance, self._good().written(self._chance), 6)
        return Conversation("bytes", split(self._chance, content))

    def noise(self) -> Conversation:
        """What is no HTTP at all."""
        chance = self._chance
        starts = (
            b"",
            b"\x16\x03\x01\x02\x00\x01\x00",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"SSH-2.0-x\r\n",
            b"\r\n" * 9,
        )
        return Conversation("noise", split(chance, chance.choice(starts) + chance.randbytes(chance.randrange(300))))

    def _one(self, kind: str, request: Request) -> Conversation:
        """One request; mostly with another behind it, whose answer says that all is answered."""
        content = request.written(self._chance)
        last = b""
        if self._chance.random() < 0.7:
            content += b"GET /probes/startup HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
            last = b'"startup"'
        return Conversation(kind, split(self._chance, content), last=last, deaf=self._chance.random() < 0.02)

    def _good(self) -> Request:
        chance = self._chance
        kind = chance.random()
        if kind < 0.5:
            return self._post(b"/sync/stream", STREAM)
        if kind < 0.7:
            return self._post(b"/sync/checkpoint-request", CHECKPOINT)
        if kind < 0.72:
            return self._post(b"/upload", UPLOAD)
        request = self._post(chance.choice((b"/write-checkpoint2.json?client_id=c1", b"/probes/liveness")), {})
        request.method, request.body = b"GET", b""
        return request

    def _post(self, path: bytes, document: dict[str, Any]) -> Request:
        token = b"Token " + self._chance.choice(self._credentials.good)
        headers = [(b"host", b"x"), (b"authorization", token), (b"content-type", b"application/json")]
        return Request(b"POST", path, headers, json.dumps(document).encode())

    def _other_token(self, request: Request) -> None:
        chance = self._chance
        if chance.random() < 0.5:
            token = chance.choice(self._credentials.bad)
        else:
            token = damaged(chance, chance.choice(self._credentials.good))
        scheme = chance.choice(
            (b"Token ", b"Token ", b"Token ", b"Bearer ", b"token ", b"", b"Token", b"Token  ", b"\xff ")
        )
        request.headers[1] = (b"authorization", scheme + token.replace(b"\n", b"").replace(b"\r", b""))


_HeaderWay = Callable[[Request, random.Random], None]


def _add_header(request: Request, chance: random.Random) -> None:
    header = chance.choice(_HEADERS)
    request.headers = [each for each in request.headers if each[0] != header[0] or chance.random() < 0.3]
    request.headers.append(header)


def _drop_header(request: Request, chance: random.Random) -> None:
    if request.headers:
        del request.headers[chance.randrange(len(request.headers))]


def _damage_header(request: Request, chance: random.Random) -> None:
    if request.headers:
        at = chance.randrange(len(request.headers))
        name, value = request.headers[at]
        request.headers[at] = (
            (damaged(chance, name), value) if chance.random() < 0.3 else (name, damaged(chance, value))
        )


def _many_headers(request: Request, chance: random.Random) -> None:
    request.headers += [(b"x-%d" % number, b"y") for number in range(chance.choice((50, 99, 150)))]


def _chunks(chance: random.Random, body: bytes) -> bytes:
    parts = []
    for piece in split(chance, body) if body else ():
        size = b"%x" % len(piece)
        if chance.random() < 0.1:
            size = chance.choice(
                (b"0", b"-1", b"f" * 17, b"ffffffffffffffff", b"g", b"", b" 1", b"0x1", size + b";a=b", b"1" * 500)
            )
        parts.append(size + b"\r\n" + piece + chance.choice((b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"")))
    ends = (
        b"0\r\n\r\n",
        b"0\r\n\r\n",
        b"0\r\n\r\n",
        b"0\r\nx: y\r\n\r\n",
        b"0\r\nauthorization: x\r\n\r\n",
        b"",
        b"0\r\n",
    )
    return b"".join(parts) + chance.choice(ends)
