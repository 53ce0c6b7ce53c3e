"""The demo's routes over HTTP: its people, their tokens, their writes, and the files of the page."""

from __future__ import annotations

import asyncio
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from headwater.api.admin.route import AdminSettings
from headwater.api.app import ApiSettings, create_app
from headwater.api.auth.key_ring import KeyRing
from headwater.api.auth.keys import parse_key
from headwater.api.auth.verify import Verifier
from headwater.api.http.server import bind
from headwater.api.studio.tokens import AdminToken
from headwater.dev import DemoFiles
from headwater.dev.routes import Demo, StudioDoor, demo_routes
from headwater.dev.workspace import StudioLink
from headwater.storage.address import SqliteAddress
from tests.support.fix_api import PlayedHead
from tests.support.fix_postgres import SourceDb
from tests.support.memory_store import MemoryStore
from tests.support.plain_http import served

SECRET = urlsafe_b64encode(b"a secret of the tests that is long enough").decode()
KEY = parse_key({"kty": "oct", "alg": "HS256", "k": SECRET})
AUDIENCE = "tests"


@pytest.fixture
def files(tmp_path: Path) -> DemoFiles:
    app = tmp_path / "dist"
    (app / "assets").mkdir(parents=True)
    (app / "index.html").write_text("<title>Demo</title>")
    (app / "assets" / "index-1a2b.js").write_text("export {}")
    (app / "assets" / "sqlite-1a2b.wasm").write_bytes(b"\0asm")
    return DemoFiles(tmp_path / "demo.yaml", app)


@pytest.fixture
def demo(demo_db: SourceDb) -> Demo:
    return Demo(demo_db.settings(), KEY, AUDIENCE)


@contextmanager
def demo_client(demo: Demo, files: DemoFiles) -> Iterator[httpx.Client]:
    """The endpoint with the demo's routes on a real port."""
    settings = ApiSettings(KeyRing((KEY,)), frozenset({AUDIENCE}))
    app = create_app(settings, MemoryStore(), PlayedHead(), demo_routes(demo, files))
    with served(app, [bind("127.0.0.1", 0)]) as (_, _, client):
        yield client


@pytest.fixture
def client(demo: Demo, files: DemoFiles) -> Iterator[httpx.Client]:
    with demo_client(demo, files) as client:
        yield client


def test_people_and_guests_have_names(client: httpx.Client, demo_db: SourceDb) -> None:
    users = client.get("/demo/users").json()
    assert [user["name"] for user in users[:2]] == ["Ada", "Ben"]
    seen = demo_db.fetch(
        """select distinct user_id::text from list_members where list_id in
             (select list_id from list_members where user_id = any(%s::uuid[]))""",
        [user["id"] for user in users[:2]],
    )
    assert {user_id for (user_id,) in seen} <= {user["id"] for user in users}


def test_token_of_person(client: httpx.Client) -> None:
    user = client.get("/demo/users").json()[1]["id"]
    answer = client.get("/demo/token", params={"user": user}).json()
    assert answer["endpoint"] == str(client.base_url).rstrip("/")
    verifier = Verifier(KeyRing((KEY,)), frozenset({AUDIENCE}))
    principal = asyncio.run(verifier.verify(answer["token"]))
    assert principal.user_id == user
    assert 3500 < principal.expires_in() <= 3600


@pytest.mark.parametrize("user", [str(uuid.UUID(int=0)), "ada", ""])
def test_no_token_for_stranger(client: httpx.Client, user: str) -> None:
    response = client.get("/demo/token", params={"user": user})
    assert response.status_code == 404
    assert response.json()["error"]["description"] == "there is no such user"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1.evil.example"},
        {"origin": "http://localhost.evil.example:8080"},
        {"origin": "http://[::1"},
        {"host": "evil.example:8080"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "evil.example", "origin": "http://evil.example"},
    ],
    ids=str,
)
def test_pages_from_elsewhere_get_no_token(client: httpx.Client, headers: dict[str, str]) -> None:
    user = client.get("/demo/users").json()[1]["id"]
    for path in ("/demo/users", f"/demo/token?user={user}"):
        response = client.get(path, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "HW_8016"), response.text


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://localhost:5173"},
        {"origin": "capacitor://localhost"},
        {"host": "192.168.1.5:8080", "origin": "http://192.168.1.5:5173"},
        {"host": "[::1]:8080"},
        {"host": "laptop.local:8080"},
        {"host": "host.docker.internal"},
    ],
    ids=str,
)
def test_apps_of_the_developer_get_a_token(client: httpx.Client, headers: dict[str, str]) -> None:
    user = client.get("/demo/users", headers=headers).json()[1]["id"]
    assert client.get("/demo/token", params={"user": user}, headers=headers).json()["token"]


@pytest.mark.parametrize("path", ["/", "/demo"])
def test_page_is_found(client: httpx.Client, path: str) -> None:
    response = client.get(path, follow_redirects=True)
    assert response.url.path == "/demo/"
    assert "<title>Demo</title>" in response.text


def test_content_types_and_caching(
    client: httpx.Client,
) -> None:
    kinds = {
        path: (client.get(f"/demo/{path}").headers["content-type"].split(";")[0], "immutable" in caching)
        for path in ("", "index.html", "assets/index-1a2b.js", "assets/sqlite-1a2b.wasm")
        if (caching := client.get(f"/demo/{path}").headers["cache-control"])
    }
    assert kinds == {
        "": ("text/html", False),
        "index.html": ("text/html", False),
        "assets/index-1a2b.js": ("text/javascript", True),
        "assets/sqlite-1a2b.wasm": ("application/wasm", True),
    }


def test_files_outside_page_are_not_served(client: httpx.Client, files: DemoFiles) -> None:
    files.rules.write_text("secret")
    assert client.get("/demo/..%2fdemo.yaml").status_code == 404
    assert client.get("/demo/assets/missing.js").status_code == 404


def test_missing_build_names_command(demo: Demo, tmp_path: Path) -> None:
    with demo_client(demo, DemoFiles(tmp_path / "demo.yaml", tmp_path / "nowhere")) as client:
        response = client.get("/demo/")
        assert response.status_code == 503
        assert "make demo" in response.text
        assert client.get("/demo/users").status_code == 200


def test_link_to_the_studio_signs_in_once(tmp_path: Path) -> None:
    tokens = (AdminToken("a token of the demo's operator", name="developer"),)
    link = StudioLink(tmp_path / "headwater.yaml")
    secret = link.make()
    admin = AdminSettings(tokens, SqliteAddress(str(tmp_path / "store")), ())
    settings = ApiSettings(KeyRing((KEY,)), frozenset({AUDIENCE}), admin=admin)
    app = create_app(settings, MemoryStore(), PlayedHead(), StudioDoor(link, tokens).routes())
    with served(app, [bind("127.0.0.1", 0)]) as (_, _, client):
        assert client.get("/demo/studio", params={"key": "wrong"}).status_code == 400
        assert client.head("/demo/studio", params={"key": secret}).status_code == 405
        entered = client.get("/demo/studio", params={"key": secret})
        assert (entered.status_code, entered.headers["location"]) == (303, "../studio/")
        assert client.get("/studio/session").json()["name"] == "developer"
        client.cookies.clear()
        assert client.get("/demo/studio", params={"key": secret}).status_code == 400
        assert client.get("/studio/session").status_code == 401
