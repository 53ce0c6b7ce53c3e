"""An issuer's HTTP server with its public keys, which can be made to misbehave."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.support.authority import Authority
from tests.support.quiet_http import http_server, send_answer
from tests.support.signers import Signer

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class JwksServer:
    """`published` is what it answers with, unless `answer` does it. `asked` are the headers of each request."""

    port: int
    scheme: str
    published: Sequence[Signer] = ()
    answer: Answer | None = None
    asked: list[dict[str, str]] = field(default_factory=list)
    let_go: threading.Event = field(default_factory=threading.Event)

    def url(self, host: str = "localhost") -> str:
        return f"{self.scheme}://{host}:{self.port}/keys"

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append({name.lower(): value for name, value in request.headers.items()})
        if self.answer is not None:
            self.answer(request)
        else:
            send_answer(request, json.dumps({"keys": [each.jwk() for each in self.published]}).encode())


@contextmanager
def jwks_server(*published: Signer, tls: ssl.SSLContext | None = None) -> Iterator[JwksServer]:
    """One that listens on 127.0.0.1."""
    served: list[JwksServer] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served[0].handle(self)

    with http_server(Handler, tls) as port:
        served.append(JwksServer(port, "http" if tls is None else "https", published))
        try:
            yield served[0]
        finally:
            served[0].let_go.set()


def certificate(folder: Path, host: str) -> tuple[ssl.SSLContext, Path]:
    """A server's side of TLS, and the file with the authority that vouches for it."""
    signing = Authority("authority of the issuer")
    issued = signing.issue(host)
    authority, chain = folder / "authority.pem", folder / "chain.pem"
    authority.write_text(signing.pem)
    chain.write_text(issued.certificate + issued.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return context, authority
