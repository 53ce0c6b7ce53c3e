"""The endpoint on a real port, over a store in memory and a source that the test plays."""

from __future__ import annotations

import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import jwt
import pytest
from starlette.routing import BaseRoute

from headwater.api.app import ApiSettings, create_app
from headwater.api.auth.key_ring import KeyRing
from headwater.api.auth.keys import parse_key
from headwater.api.http.server import ApiServer, bind
from headwater.api.limits import HttpLimits
from headwater.api.streams.traffic import Traffic
from headwater.oplog.lsn import Lsn
from headwater.source.connect import SourceUnreachableError
from headwater.source.head import SourceHead, UnknownHeadError
from headwater_rules.compiler.compile import compile_config
from headwater_rules.evaluate.requests import resolve
from headwater_rules.results import SyncRequest
from tests.support.memory_store import MemoryStore
from tests.support.model_client import ModelClient
from tests.support.plain_http import served
from tests.support.slow_store import SlowStore

AnyStore = TypeVar("AnyStore", bound=MemoryStore)

SECRET = b"a secret of the tests, of at least sixty-four bytes, so that it fits any hash"
AUDIENCE = "headwater-tests"

RULES = """
config: {edition: 3}
streams:
  mine:
    auto_subscribe: true
    query: SELECT * FROM todos WHERE owner = auth.user_id()
  shared:
    auto_subscribe: true
    priority: 1
    query: SELECT * FROM items WHERE list IN (SELECT list FROM members WHERE member = auth.user_id())
"""


def jwk(secret: bytes = SECRET, alg: str = "HS256", kid: str | None = None) -> dict[str, object]:
    """A shared secret as the config has it."""
    key: dict[str, object] = {"kty": "oct", "alg": alg, "k": urlsafe_b64encode(secret).rstrip(b"=").decode()}
    return key if kid is None else key | {"kid": kid}


def make_token(
    sub: object = "u1",
    *,
    secret: bytes = SECRET,
    alg: str = "HS256",
    header: Mapping[str, object] | None = None,
    **claims: object,
) -> str:
    """A signed token, valid for ten minutes. A claim given as None is left out."""
    now = int(time.time())
    payload = {"sub": sub, "aud": AUDIENCE, "iat": now, "exp": now + 600, **claims}
    present = {name: value for name, value in payload.items() if value is not None}
    return jwt.api_jws.encode(json.dumps(present).encode(), secret, alg, headers=dict(header or {}))


class PlayedHead(SourceHead):
    """The ends of sources' logs, where the test puts them. Those of `down` do not answer."""

    def __init__(self) -> None:
        self.lsns: Mapping[str, Lsn] = {"default": Lsn(1)}
        self.failure: Exception | None = None
        self.down: set[str] = set()
        self.asked = 0
        self.closed = False

    async def advance_past(self, sources: Collection[str] | None = None) -> Mapping[str, Lsn]:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        lsns = {source: lsn for source, lsn in self.lsns.items() if sources is None or source in sources}
        for source in self.down & lsns.keys():
            raise UnknownHeadError(source, SourceUnreachableError("no route to db.internal", "db.internal:5432/app"))
        return lsns

    async def close(self) -> None:
        self.closed = True


@dataclass
class Stream:
    """An open stream with a model client at its end."""

    response: httpx.Response
    client: ModelClient
    _parts: Iterator[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._parts = self.response.iter_bytes()
        self._rest = b""

    def until(self, condition: Callable[[ModelClient], bool]) -> ModelClient:
        """Read on until the client is in this state."""
        while not condition(self.client):
            self._read(next(self._parts))
        return self.client

    def completed(self, times: int = 1) -> ModelClient:
        """Read on until so many checkpoints were completed on this client."""
        return self.until(lambda client: client.completed >= times)

    def to_the_end(self) -> ModelClient:
        """Read all there is. Raises httpx.RemoteProtocolError when it is cut off."""
        for part in self._parts:
            self._read(part)
        assert not self._rest
        return self.client

    def _read(self, part: bytes) -> None:
        whole, newline, self._rest = (self._rest + part).rpartition(b"\n")
        self.client.receive(whole + newline)


@dataclass
class Endpoint:
    """A running endpoint."""

    store: MemoryStore
    head: PlayedHead
    server: ApiServer
    http: httpx.Client
    thread: threading.Thread

    @property
    def address(self) -> tuple[str, int]:
        """For a socket."""
        return self.http.base_url.host, self.http.base_url.port or 0

    def bucket(self, stream: str, value: str) -> str:
        """The full name of a stream's bucket."""
        (definition,) = (d for d in self.plan.buckets if d.name.startswith(f"{stream}."))
        return f'{definition.name}["{value}"]'

    def membership(self, user: str) -> str:
        """The lookup key of a user's memberships."""
        (key,) = resolve(self.plan, SyncRequest({"sub": user}), lambda _: {}).lookup_keys
        return key

    @property
    def plan(self) -> Any:
        assert self.store.config is not None
        return compile_config(self.store.config.yaml).plan

    def post(self, body: object = None, *, token: str | None = None, **headers: str) -> httpx.Response:
        """A stream request that is expected to be refused: reads the whole answer."""
        sent = self._headers(token, headers)
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        return self.http.post("/sync/stream", content=content, headers=sent)

    @contextmanager
    def stream(
        self,
        user: str = "u1",
        *,
        client: ModelClient | None = None,
        token: str | None = None,
        encoding: str = "identity",
        **body: object,
    ) -> Iterator[Stream]:
        """An open stream. The model client asks for what it lacks. `encoding` is its Accept-Encoding header."""
        client = client or ModelClient()
        buckets = [{"name": name, "after": str(after)} for name, after in client.connect().items()]
        request = {"buckets": buckets, "raw_data": True, **body}
        headers = self._headers(token or make_token(user), {"accept-encoding": encoding})
        with self.http.stream("POST", "/sync/stream", json=request, headers=headers) as response:
            assert response.status_code == 200, response.read()
            yield Stream(response, client)

    def write_checkpoint(self, user: str = "u1", client_id: str | None = None, *sources: str) -> httpx.Response:
        params: dict[str, str | list[str]] = {} if client_id is None else {"client_id": client_id}
        if sources:
            params["source"] = list(sources)
        return self.http.get("/write-checkpoint2.json", params=params, headers=self._headers(make_token(user), {}))

    def refused(self) -> dict[str, int]:
        """How many requests and streams were refused so far, by code."""
        return self.server.endpoint.refusals.counts()

    @property
    def traffic(self) -> Traffic:
        """What is counted of its streams."""
        return self.server.endpoint.traffic

    def open_streams(self) -> int:
        """How many there are now."""
        return self.server.endpoint.streams.count

    def terminate(self) -> None:
        """What SIGTERM does."""
        self.server.handle_exit(15, None)

    def wait_for_the_end(self) -> None:
        """Wait until a server that was told to has ended."""
        self.thread.join(60)
        assert not self.thread.is_alive(), "the server ends"

    def _headers(self, token: str | None, more: Mapping[str, str]) -> dict[str, str]:
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        if "authorization" not in headers:
            headers["authorization"] = f"Token {token or make_token()}"
        return headers


@contextmanager
def running(store: MemoryStore, extra_routes: Sequence[BaseRoute] = (), **settings: Any) -> Iterator[Endpoint]:
    """The endpoint over this store, in a thread."""
    head = PlayedHead()
    accepted = {"keys": KeyRing((parse_key(jwk()),)), "audience": frozenset({AUDIENCE})}
    usual = {**accepted, "http": HttpLimits(drain_seconds=0)}
    app = create_app(ApiSettings(**{**usual, **settings}), store, head, extra_routes)
    with served(app, [bind("127.0.0.1", 0)]) as (server, thread, http):
        yield Endpoint(store, head, server, http, thread)


@pytest.fixture
def memory_store() -> MemoryStore:
    """A store whose active config is `RULES`, with one commit."""
    return _begun(MemoryStore())


@pytest.fixture
def slow_store() -> Iterator[SlowStore]:
    """Like `memory_store`, and slow where the test wants it to be, until the test ends."""
    store = _begun(SlowStore())
    yield store
    store.go.set()


def _begun(store: AnyStore) -> AnyStore:
    store.replace_config(RULES)
    store.put("unrelated", "1")
    store.commit()
    return store


@pytest.fixture
def start_endpoint() -> Iterator[Callable[..., Endpoint]]:
    """Starts endpoints that end with the test: `start_endpoint(memory_store, streams=StreamLimits(1))`."""
    with ExitStack() as stack:
        yield lambda store, **settings: stack.enter_context(running(store, **settings))


@pytest.fixture
def endpoint(start_endpoint: Callable[..., Endpoint], memory_store: MemoryStore) -> Endpoint:
    """A running endpoint over `memory_store`."""
    return start_endpoint(memory_store)
