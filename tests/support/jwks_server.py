"""An issuer's HTTP server with its public keys, which can be made to misbehave."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

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
            send(request, json.dumps({"keys": [each.jwk() for each in self.published]}).encode())


def send(request: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    """Answer a request."""
    request.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)


@contextmanager
def jwks_server(*published: Signer, tls: ssl.SSLContext | None = None) -> Iterator[JwksServer]:
    """One that listens on 127.0.0.1."""
    served: list[JwksServer] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                served[0].handle(self)
            except OSError:
                """The client hung up."""

        def log_message(self, *_: object) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that hangs up within TLS is what some tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    issuer = JwksServer(server.server_port, "http" if tls is None else "https", published)
    served.append(issuer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield issuer
    finally:
        issuer.let_go.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def certificate(folder: Path, host: str) -> tuple[ssl.SSLContext, Path]:
    """A server's side of TLS, and the file with the authority that vouches for it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    authority, private = folder / "authority.pem", folder / "key.pem"
    authority.write_bytes(made.public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, private)
    return context, authority
