"""Headwater behind the proxies whose configs are in docker/proxies: streams, websockets and large uploads."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater_client import Database
from tests.support.authority import Authority
from tests.support.fix_api import RULES, make_token
from tests.support.fix_service import free_port
from tests.support.fix_upload import Uploads
from tests.support.memory_store import MemoryStore
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

FOLDER = Path(__file__).parents[2] / "docker" / "proxies"
PROXIES = ["nginx", "haproxy", "caddy"]
CLIENT = [sys.executable, "-m", "headwater_client"]


@pytest.fixture(params=PROXIES)
def program(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


def config_here(program: str, folder: Path, port: int, upstream: int) -> list[str]:
    """Write the config of docker/proxies for other ports, with certificates of an authority; how to start with it."""
    authority = Authority("authority of the proxies")
    issued = authority.issue("localhost")
    (folder / "authority.pem").write_text(authority.pem)
    certificate, key, both = folder / "cert.pem", folder / "cert.key", folder / "both.pem"
    certificate.write_text(issued.certificate)
    key.write_text(issued.key)
    both.write_text(issued.certificate + issued.key)
    given = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg", "caddy": "Caddyfile"}[program]
    text = (FOLDER / given).read_text(encoding="utf-8").replace("127.0.0.1:8080", f"127.0.0.1:{upstream}")
    file, start = folder / given, shutil.which(program) or program
    if program == "nginx":
        text = text.replace("listen 443", f"listen 127.0.0.1:{port}")
        text = text.replace("/etc/ssl/sync.example.com.pem", str(certificate))
        text = text.replace("/etc/ssl/sync.example.com.key", str(key))
        (folder / "logs").mkdir()
        text = text.replace("http {", f"http {{\n  access_log off;\n  client_body_temp_path {folder}/body;", 1)
        # The folder of the test is for its owner only
        here = f"daemon off; pid {folder}/pid;" + (" user root;" if os.geteuid() == 0 else "")
        command = [start, "-c", str(file), "-p", str(folder), "-e", "stderr", "-g", here]
    elif program == "haproxy":
        text = text.replace("bind :443", f"bind 127.0.0.1:{port}")
        text = text.replace("/etc/ssl/sync.example.com.pem", str(both))
        command = [start, "-db", "-f", str(file)]
    else:
        text = text.replace(
            "sync.example.com {", f"https://localhost:{port} {{\n\tbind 127.0.0.1\n\ttls {certificate} {key}", 1
        )
        file.write_text("{\n\tadmin off\n\tauto_https off\n}\n" + text, encoding="utf-8")
        return [start, "run", "--adapter", "caddyfile", "--config", str(file)]
    file.write_text(text, encoding="utf-8")
    return command


def test_proxy_takes_its_config(program: str, tmp_path: Path) -> None:
    run = config_here(program, tmp_path, 8443, 8080)
    check = {"nginx": [*run, "-t"], "haproxy": [*run, "-c"], "caddy": [run[0], "validate", *run[2:]]}[program]
    done = subprocess.run(check, capture_output=True, text=True, check=False, env={"HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr + done.stdout
    assert not re.search(r"\[warn|deprecated", done.stderr + done.stdout), done.stderr


@contextmanager
def proxied(program: str, folder: Path, upstream: int) -> Iterator[int]:
    """The port of the proxy, once it answers for Headwater."""
    port = free_port()
    command = config_here(program, folder, port, upstream)
    log = folder / "proxy.log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env={"HOME": str(folder)}) as running:

        def answers() -> bool:
            assert running.poll() is None, log.read_text()
            return b" 200" in curl(folder, port, "/probes/liveness", "-i", "--max-time", "5").stdout[:20]

        try:
            wait_until(answers, program)
            yield port
        finally:
            running.terminate()


def curl(folder: Path, port: int, path: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    command: list[str | Path] = ["curl", "--silent", "--http2", "--cacert", folder / "authority.pem", *words]
    return subprocess.run([*command, f"https://localhost:{port}{path}"], capture_output=True, check=False)


@pytest.mark.long
def test_streams_websockets_and_uploads_pass(
    program: str, notes_of: Callable[..., Uploads], memory_store: MemoryStore, tmp_path: Path
) -> None:
    memory_store.replace_config(RULES)
    uploads = notes_of()
    bucket = uploads.endpoint.bucket("mine", "u1")
    memory_store.put(bucket, "1", '{"title":"first"}')
    memory_store.commit()
    with proxied(program, tmp_path, uploads.endpoint.address[1]) as port:
        endpoint = f"https://localhost:{port}"
        trusting = {"SSL_CERT_FILE": str(tmp_path / "authority.pem"), "HEADWATER_CLIENT_TOKEN": make_token("u1")}
        for transport in ("http", "websocket"):
            file = tmp_path / f"{transport}.db"
            words: list[str | Path] = [
                "sync",
                file,
                "--endpoint",
                endpoint,
                "--transport",
                transport,
                "--timeout",
                "60",
            ]
            with subprocess.Popen([*CLIENT, *words], env=trusting, stderr=subprocess.PIPE) as device:
                try:
                    wait_until(lambda f=file: titles(f)[:1] == ["first"], f"the first row over {transport}")  # type: ignore[misc]
                    memory_store.put(bucket, transport, json.dumps({"title": f"while {transport} is open"}))
                    memory_store.commit()
                    # in a stream that a proxy holds back it would come with the next 4 KB, or never
                    wait_until(
                        lambda f=file, t=transport: f"while {t} is open" in titles(f),  # type: ignore[misc]
                        f"a row that was written while {transport} was open",
                    )
                finally:
                    device.terminate()
        body = tmp_path / "upload.json"
        headers = ["-H", "content-type: application/json", "-H", f"authorization: Token {uploads.token('ann')}"]
        for megabytes, status in ((7.9, 200), (8.2, 413)):
            body.write_text(json.dumps(upload_of(megabytes)))
            answer = curl(tmp_path, port, "/upload", *headers, "--data-binary", f"@{body}", "-w", "\n%{http_code}")
            text, _, code = answer.stdout.decode().rpartition("\n")
            assert int(code) == status, text
            assert ("applied" if status == 200 else "HW_6002") in text, "it is Headwater that answers"


def titles(file: Path) -> list[str]:
    if not file.exists():
        return []
    with Database(file) as database:
        return [row["title"] for row in database.rows("select data ->> 'title' as title from ps_oplog order by op_id")]


def upload_of(megabytes: float) -> dict[str, object]:
    """An upload whose body has this size."""
    count = 79
    data = {"owner": "ann", "title": "large", "body": "x" * int(megabytes * (1 << 20) / count - 120)}
    crud = [{"op_id": n, "op": "PUT", "type": "notes", "id": str(n), "data": data} for n in range(1, count + 1)]
    return {"client_id": "c1", "transactions": [{"crud": crud}]}
