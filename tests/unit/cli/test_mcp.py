"""An assistant sees of a service what its token may see, changes nothing unless it may, and is told what is wrong."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import pytest
from jsonschema import Draft202012Validator
from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import CallToolResult, TextContent

from headwater.api.admin.route import AdminSettings
from headwater.api.studio.tokens import AdminToken, Role
from headwater.cli.mcp import server as module
from headwater.cli.mcp.client import AdminClient
from headwater.cli.mcp.manual import Manual
from headwater.cli.mcp.server import Asker, AssistantServer
from headwater.cli.mcp.tools import ROUTES
from tests.support.command import headwater
from tests.support.fix_admin import NOWHERE, TOKEN, AdminEndpoint, running_admin
from tests.support.ruled_configs import SERVED, STREAM_ADDED, WRONG
from tests.support.ruled_store import RuledStore

Result = TypeVar("Result")
WRITES = {route.tool for route in ROUTES if route.writes}
MANUAL = Manual()


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


class Assistant:
    """An assistant with this token."""

    def __init__(self, endpoint: AdminEndpoint, token: str = TOKEN, *, writes: bool = False, url: str = "") -> None:
        self._url = url or f"http://127.0.0.1:{endpoint.port}"
        self._token = token
        self._writes = writes

    def tools(self) -> dict[str, Any]:
        async def listed(client: Client) -> dict[str, Any]:
            return {tool.name: tool for tool in (await client.list_tools()).tools}

        return self._with(listed)

    def call(self, tool: str, **arguments: Any) -> Any:
        """The answer's data."""
        result = self.called(tool, **arguments)
        assert not result.is_error, text_of(result)
        return json.loads(text_of(result))["data"]

    def refusal(self, tool: str, **arguments: Any) -> str:
        result = self.called(tool, **arguments)
        assert result.is_error, text_of(result)
        return text_of(result)

    def called(self, tool: str, **arguments: Any) -> CallToolResult:
        return self._with(lambda client: client.call_tool(tool, arguments))

    def _with(self, work: Callable[[Client], Awaitable[Result]]) -> Result:
        async def run() -> Result:
            admin = AdminClient(self._url, self._token)
            try:
                server = AssistantServer(lambda _: Asker(admin, self._writes), MANUAL).server
                async with Client(server) as client:
                    return await work(client)
            finally:
                await admin.close()

        return anyio.run(run)


@pytest.fixture
def assistant(admin: AdminEndpoint) -> Assistant:
    return Assistant(admin)


def test_tools_that_read(assistant: Assistant, admin: AdminEndpoint) -> None:
    tools = assistant.tools()
    assert {"status", "explain_row", "validate", "preview", "search_docs"} <= tools.keys()
    assert not tools.keys() & WRITES
    for name, tool in tools.items():
        assert tool.annotations.read_only_hint, name
        assert tool.input_schema["type"] == "object", name
        Draft202012Validator.check_schema(tool.input_schema)
        assert "#/components" not in json.dumps(tool.input_schema), name
    client = {"client": {"user": "u1"}, "table": "todos", "id": "t1"}
    Draft202012Validator(tools["explain_row"].input_schema).validate(client)
    assert admin.post("/api/headwater/v1/explain/user", client={"user": "u1"})


def test_tools_that_write_are_asked_for(admin: AdminEndpoint) -> None:
    tools = Assistant(admin, writes=True).tools()
    assert tools.keys() >= WRITES
    assert all(tools[name].annotations.destructive_hint for name in WRITES)


def test_answers_are_those_of_the_api(assistant: Assistant, admin: AdminEndpoint) -> None:
    assert assistant.call("served_rules") == admin.get("/api/headwater/v1/versions")
    assert assistant.call("rules_text", id=1)["content"] == SERVED
    client = {"user": "u1"}
    told = assistant.call("explain_user", client=client)
    assert told == admin.post("/api/headwater/v1/explain/user", client=client)
    assert assistant.call("largest_buckets", limit=2, order="grown")["buckets"]
    assert not assistant.call("validate", content=WRONG)["valid"]


def test_refusals_are_told(assistant: Assistant) -> None:
    assert "HW_6202" in assistant.refusal("rules_text", id=99)
    assert "is missing" in assistant.refusal("rules_text")
    assert "HW_6201" in assistant.refusal("validate", content=SERVED, sql="drop table notes")
    assert "HW_6201" in assistant.refusal("explain_row", client="u1")
    for wrong in ("../../openapi.json", "1/../../revocations", "1?x=", "1#"):
        assert assistant.refusal("rules_text", id=wrong)


def test_nothing_is_written_unless_allowed(assistant: Assistant, ruled: RuledStore) -> None:
    for name in WRITES:
        assert "no tool" in assistant.refusal(name, content=STREAM_ADDED, ids=["1"], id=1)
    assert len(ruled.store.versions()) == 1


def test_deploy_and_roll_back(admin: AdminEndpoint, ruled: RuledStore) -> None:
    assistant = Assistant(admin, writes=True)
    assert assistant.call("deploy", content=STREAM_ADDED)["new"]
    assert "PSYNC_R0001" in assistant.refusal("deploy", content=WRONG)
    ruled.process()
    assert assistant.call("rollback")["new"]
    assert [version.yaml for version in ruled.store.versions()] == [SERVED, STREAM_ADDED, SERVED]


def test_role_view_changes_nothing(ruled: RuledStore) -> None:
    ruled.serve(SERVED)
    token = "a token that may only look"
    settings = AdminSettings((AdminToken(token, Role.VIEW, "ann"), AdminToken(TOKEN)), ruled.store.address, (NOWHERE,))
    with running_admin(settings) as admin:
        assistant = Assistant(admin, token, writes=True)
        assert assistant.call("served_rules")
        for name in WRITES:
            assert "[HW_62" in assistant.refusal(name, content=STREAM_ADDED, ids=["1"], id=1)
    assert len(ruled.store.versions()) == 1


def test_wrong_token(admin: AdminEndpoint) -> None:
    assistant = Assistant(admin, "not a token of theirs")
    assert "status" in assistant.tools()
    told = assistant.refusal("status")
    assert ("PSYNC_S2101" in told, "not a token of theirs" in told) == (True, False)


def test_service_is_away(admin: AdminEndpoint) -> None:
    away = Assistant(admin, url="http://127.0.0.1:1")
    assert "HW_8006" in away.refusal("status")
    assert "auth.user_id()" in text_of(away.called("search_docs", query="auth.user_id"))


def test_large_answers_are_cut(assistant: Assistant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CHARACTERS", 100)
    told = text_of(assistant.called("rule_words"))
    assert told.startswith("cut: the first 100 of ")
    assert len(told) < 200


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("revoke a token of a user", "admin-api.md"),
        ("time window: rows of the last 7 days", "sync-rules.md"),
        ("HW_6117", "errors.md"),
        ("several databases shards", "several-databases.md"),
        ("parked uploads dead letters", "uploads.md"),
        ("compaction of histories", "compaction.md"),
    ],
)
def test_docs_are_found(query: str, page: str) -> None:
    assert page in [section.page for section in MANUAL.search(query, 3)]


def test_docs_without_such_words(assistant: Assistant) -> None:
    assert "nothing" in text_of(assistant.called("search_docs", query="xyzzyx"))
    assert "nothing" in text_of(assistant.called("search_docs", query=""))
    assert assistant.called("search_docs", limit=3).is_error


def test_the_command_speaks_over_standard_streams(admin: AdminEndpoint) -> None:
    async def run() -> tuple[set[str], str]:
        program = StdioServerParameters(
            command=sys.executable,
            args=["-m", "headwater", "mcp", "--url", f"http://127.0.0.1:{admin.port}"],
            env={**os.environ, "HEADWATER_TOKEN": TOKEN},
        )
        async with Client(stdio_client(program)) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            return tools, text_of(await client.call_tool("status", {}))

    tools, status = anyio.run(run)
    assert "explain_row" in tools
    assert json.loads(status)["data"]["served"] == "version 1 of the sync config"


@pytest.mark.parametrize(
    "url", ["ftp://x", "127.0.0.1:8080", "http://", "http://x:y", "http://x/?a=1", "", "http://[1"]
)
def test_addresses_that_are_none(url: str) -> None:
    told = headwater("mcp", "--url", url, HEADWATER_TOKEN="a token of sixteen")
    assert (told.code, "--url" in told.err) == (2, True), told


def test_no_token() -> None:
    told = headwater("mcp", HEADWATER_TOKEN=" ")
    assert (told.code, "HEADWATER_TOKEN" in told.err) == (2, True), told
