"""The endpoint as a process of its own over a deployment's store, and a backend that devices upload to."""

from __future__ import annotations

import base64
import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING

import jwt
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.support.command import command
from tests.support.processes import Running, start
from tests.support.quiet_http import http_server, send_answer

if TYPE_CHECKING:  # plugins must not import each other: pytest rewrites each as it loads it
    from tests.support.fix_headwater import Deployment

KEY = b"a-test-key-of-thirty-two-bytes-!"
AUDIENCE = "tests"


@dataclass
class Service:
    """`headwater api` over a deployment's store: where devices connect to, and how they prove who they are."""

    deployment: Deployment
    config: Path
    port: int
    upload_url: str
    more: Mapping[str, object] = field(default_factory=dict)
    _running: Running | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the process, which has to run."""
        assert self._running is not None
        return self._running.process.pid

    @property
    def log(self) -> Path:
        """What the process has written since it was started."""
        return self.config.with_suffix(".log")

    def token(self, user: str, seconds: int = 3600, **claims: object) -> str:
        """A signed token that is valid for so long."""
        return token_for(user, seconds, **claims)

    def start(self) -> None:
        """Start the process and wait until it answers."""
        self.config.write_text(json.dumps({**config_of(self.deployment, self.port), **self.more}), encoding="utf-8")
        self.log.unlink(missing_ok=True)
        self._running = start(command("api", "--config", self.config), self.log)
        self._running.wait_ready(self.port, seconds=90)

    def stop(self) -> None:
        if self._running is not None:
            self._running.ask_to_end()
            self._running.wait(90)
            self._running = None


def token_for(user: str, seconds: int = 3600, **claims: object) -> str:
    """A token that a service of `config_of` takes, valid for so long."""
    now = int(time.time())
    payload = {"sub": user, "aud": AUDIENCE, "iat": now, "exp": now + seconds, **claims}
    return jwt.encode(payload, KEY, algorithm="HS256")


_ports = itertools.count(os.getpid() * 97)  # so that each process of a run begins elsewhere


def free_port() -> int:
    """A port that nobody listens on, and that nobody gets before it is listened on: the system hands out others, from
    32768 on."""
    while True:
        port = 10_000 + next(_ports) % 20_000
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def config_of(deployment: Deployment, port: int) -> dict[str, object]:
    """The service config that describes a deployment, in the published shape."""
    settings = deployment.settings
    connection = connection_to(settings.port, settings.database, settings.user) | {
        "slot_name_prefix": settings.slot_prefix
    }
    return {
        "replication": {"connections": [connection]},
        "storage": _storage_of(deployment),
        "sync_config": {"content": deployment.yaml},
        "port": port,
        "api": {"workers": 1},
        "client_auth": client_auth(),
    }


def connection_to(
    port: int, database: str = "postgres", user: str = "postgres", password: str = "unused"
) -> dict[str, object]:
    """A Postgres of this machine, for a service config."""
    return {
        "type": "postgresql",
        "hostname": "127.0.0.1",
        "port": port,
        "database": database,
        "username": user,
        "password": password,
        "sslmode": "disable",
    }


def _storage_of(deployment: Deployment) -> dict[str, object]:
    if deployment.storage is None:
        return {"type": "sqlite", "path": str(deployment.directory)}
    store = conninfo_to_dict(deployment.storage.conninfo)
    connection = connection_to(int(store["port"] or 0), str(store["dbname"]), str(store["user"]))
    return {**connection, "schema": deployment.storage.schema}


def client_auth(secret: bytes = KEY, audience: str = AUDIENCE) -> dict[str, object]:
    """What a service needs to take tokens that are signed with this, as those of `token_for` are."""
    key = {"kty": "oct", "alg": "HS256", "k": base64.urlsafe_b64encode(secret).decode()}
    return {"audience": [audience], "jwks": {"keys": [key]}}


def _uploads(dsn: str) -> type[BaseHTTPRequestHandler]:
    """A backend as an app developer would write one: each batch is one transaction."""

    class Uploads(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with psycopg.connect(dsn) as conn:
                for entry in body["batch"]:
                    conn.execute(_statement(entry), [*(entry["data"] or {}).values(), entry["id"]])
            send_answer(self, b"{}", Access_Control_Allow_Origin="*")

        def do_OPTIONS(self) -> None:
            """A page asks first whether it may."""
            allowed = {"Origin": "*", "Headers": "*, authorization", "Methods": "*"}
            send_answer(self, b"", 204, **{f"Access_Control_Allow_{what}": value for what, value in allowed.items()})

    return Uploads


def _statement(entry: dict[str, dict[str, object]]) -> sql.Composed:
    table, columns = sql.Identifier(str(entry["type"])), [sql.Identifier(name) for name in entry["data"] or {}]
    if str(entry["op"]) == "DELETE":
        return sql.SQL("delete from {} where id = %s").format(table)
    if str(entry["op"]) == "PATCH":
        pairs = sql.SQL(", ").join(sql.SQL("{} = %s").format(column) for column in columns)
        return sql.SQL("update {} set {} where id = %s").format(table, pairs)
    names = sql.SQL(", ").join([*columns, sql.Identifier("id")])
    marks = sql.SQL(", ").join([sql.Placeholder()] * (len(columns) + 1))
    return sql.SQL("insert into {} ({}) values ({})").format(table, names, marks)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """`serve(deployment)` starts `headwater api` over its store, and an upload backend over its source. What is named
    beside it goes into the service config."""
    with ExitStack() as stack:

        def serve(deployment: Deployment, **more: object) -> Service:
            port = free_port()
            uploads = stack.enter_context(http_server(_uploads(deployment.source.dsn)))
            url = f"http://127.0.0.1:{uploads}/upload"
            service = Service(deployment, tmp_path / f"api-{port}.json", port, url, more)
            stack.callback(service.stop)
            service.start()
            return service

        yield serve
