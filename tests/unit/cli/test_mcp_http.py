"""Assistants that ask over HTTP get what the token of each may see, and nobody gets anything without one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import anyio
import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from headwater.api.admin.route import AdminSettings
from headwater.api.studio.tokens import AdminToken, Role
from headwater.cli.mcp.tools import ROUTES
from tests.support.command import command, environment, headwater_here
from tests.support.fix_admin import NOWHERE, TOKEN, AdminEndpoint, running_admin
from tests.support.plain_http import plain_http
from tests.support.ruled_configs import SERVED, STREAM_ADDED
from tests.support.ruled_store import RuledStore

Result = TypeVar("Result")
VIEWER = "a token that may only look"
WRITES = {route.tool for route in ROUTES if route.writes}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
ACCEPT = {"accept": "application/json, text/event-stream"}


@pytest.fixture
def service(ruled: RuledStore) -> Iterator[AdminEndpoint]:
    ruled.serve(SERVED)
    tokens = (AdminToken(TOKEN, name="ada"), AdminToken(VIEWER, Role.VIEW, "vera"))
    with running_admin(AdminSettings(tokens, ruled.store.address, (NOWHERE,))) as endpoint:
        yield endpoint


@contextmanager
def served(url: str, *options: str, host: str = "127.0.0.1") -> Iterator[int]:
    """The command, and the port that it listens on."""
    program = command("mcp", "--url", url, "--http", f"{host}:0", *options)
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            assert "serving assistants at http://" in said, said
            yield int(said.rpartition(":")[2].partition("/")[0])
        finally:
            process.terminate()
            assert process.wait(20) == 0


def url_of(service: AdminEndpoint) -> str:
    return f"http://127.0.0.1:{service.port}"


@pytest.fixture
def port(service: AdminEndpoint) -> Iterator[int]:
    with served(url_of(service), "--allow-writes") as taken:
        yield taken


@asynccontextmanager
async def _client(port: int, token: str) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http,
        Client(streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)) as client,
    ):
        yield client


def run(port: int, token: str, work: Callable[[Client], Awaitable[Result]]) -> Result:
    async def main() -> Result:
        async with _client(port, token) as client:
            return await work(client)

    return anyio.run(main)


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


def test_each_client_has_its_own_role(port: int, ruled: RuledStore) -> None:
    async def both() -> None:
        async with _client(port, VIEWER) as viewer, _client(port, TOKEN) as editor:
            for _ in range(2):
                assert await names(editor) >= WRITES
                assert not WRITES & await names(viewer)
            answers: dict[str, CallToolResult] = {}

            async def deploy(who: str, client: Client) -> None:
                answers[who] = await client.call_tool("deploy", {"content": STREAM_ADDED})

            async with anyio.create_task_group() as group:
                group.start_soon(deploy, "viewer", viewer)
                group.start_soon(deploy, "editor", editor)
            assert answers["viewer"].is_error
            assert "no tool" in text_of(answers["viewer"])
            assert json.loads(text_of(answers["editor"]))["data"]["new"]
            changes = json.loads(text_of(await viewer.call_tool("changes", {})))["data"]["changes"]
            assert [change["who"] for change in changes] == ["ada"]

    anyio.run(both)
    assert [version.yaml for version in ruled.store.versions()] == [SERVED, STREAM_ADDED]


def test_nothing_is_written_unless_allowed(service: AdminEndpoint, ruled: RuledStore) -> None:
    with served(url_of(service)) as port:

        async def attempt(client: Client) -> CallToolResult:
            assert not WRITES & await names(client)
            return await client.call_tool("deploy", {"content": STREAM_ADDED})

        assert run(port, TOKEN, attempt).is_error
    assert len(ruled.store.versions()) == 1


def test_strangers(port: int) -> None:
    wrong = ("", "Bearer", "Bearer not a token of theirs", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer \xfc")
    for given in (None, *wrong):
        headers = {**ACCEPT, **({} if given is None else {"authorization": given})}
        with plain_http(port) as http:
            for method, path in (("POST", "/mcp"), ("GET", "/mcp"), ("DELETE", "/mcp"), ("POST", "/other")):
                refused = http.request(method, path, headers=httpx.Headers(headers, "latin-1"), json=LIST)
                assert refused.status_code == 401, (given, method, path, refused.text)
                assert refused.headers["www-authenticate"] == "Bearer"
                assert "explain" not in refused.text


def post(port: int, token: str, **headers: str) -> httpx.Response:
    with plain_http(port, {"authorization": f"Bearer {token}", **ACCEPT}) as http:
        return http.post("/mcp", json=LIST, headers=headers)


def test_foreign_pages(port: int) -> None:
    for header, value, status in (
        ("origin", "https://evil.example", 403),
        ("origin", "null", 403),
        ("origin", "http://127.0.0.1.evil.example", 403),
        ("host", "evil.example", 421),
        ("host", "evil.example:8090", 421),
        ("host", "localhost.evil.example:8090", 421),
        ("content-type", "text/plain", 400),
        ("host", "localhost:8090", 200),
        ("origin", "http://localhost:8090", 200),
    ):
        answer = post(port, TOKEN, **{header: value})
        assert answer.status_code == status, (header, value, answer.text)
        assert ("explain_row" in answer.text) == (status == 200)


def test_names_of_a_proxy(service: AdminEndpoint) -> None:
    with served(url_of(service), "--allow-host", "mcp.example.org", host="0.0.0.0") as port:
        assert post(port, TOKEN, host="mcp.example.org", origin="https://mcp.example.org").status_code == 200
        assert post(port, TOKEN, host="mcp.example.org", origin="http://mcp.example.org").status_code == 403
        assert post(port, TOKEN, host="other.example.org").status_code == 421


def test_huge_bodies(port: int) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(80):
            yield b" " * 64 * 1024

    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json", **ACCEPT}
    with plain_http(port) as http:
        assert http.post("/mcp", content=b" " * (5 << 20), headers=headers).status_code == 413
        assert http.post("/mcp", content=parts(), headers=headers).status_code == 413
    assert post(port, TOKEN).status_code == 200


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18"])
def test_sessions_give_nothing(port: int, version: str) -> None:
    """Clients of earlier versions of the protocol initialize; what one is told lets another do nothing."""
    begin = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}},
    }
    with plain_http(port, {"authorization": f"Bearer {TOKEN}", **ACCEPT}) as http:
        begun = http.post("/mcp", json=begin)
    assert begun.status_code == 200, begun.text
    session = begun.headers.get("mcp-session-id", "0123456789abcdef")
    told = post(port, VIEWER, **{"mcp-session-id": session, "mcp-protocol-version": version})
    assert ("explain_row" in told.text, "rollback" in told.text) == (True, False)
    stranger = post(port, "not a token of theirs", **{"mcp-session-id": session, "mcp-protocol-version": version})
    assert stranger.status_code == 401


def test_service_is_away() -> None:
    with served("http://127.0.0.1:1") as port:
        refused = post(port, TOKEN)
        assert (refused.status_code, "127.0.0.1" in refused.text) == (502, False)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--http", "0.0.0.0:8090"], "loopback"),
        (["--http", "[::]:8090"], "loopback"),
        (["--http", "192.0.2.1:8090"], "loopback"),
        (["--http", "mcp.example.org:8090"], "loopback"),
        (["--http", "8090"], "no address"),
        (["--http", "127.0.0.1:http"], "no address"),
        (["--http", "127.0.0.1:70000"], "no address"),
        (["--allow-host", "mcp.example.org"], "--http"),
    ],
)
def test_addresses_that_are_refused(options: list[str], told: str) -> None:
    outcome = headwater_here("mcp", *options, HEADWATER_TOKEN=TOKEN)
    assert (outcome.code, told in outcome.err) == (2, True), outcome
