"""Transcripts in the docs have what a reader needs, and nothing that only the machine has that they were made on."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from docs.generate.transcript import Transcript, TranscriptError, check_clean, check_room, clean

FOLDER = Path("/tmp/first-hour-abc/clone")


def test_machine_specific_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:secret@mirror.example.net/simple")
    raw = (
        "pip install from https://me:secret@mirror.example.net/simple\n"
        f"init {FOLDER}/home/app on {socket.gethostname()}\n"
        "http://127.0.0.1:8080/demo/ of https://me:secret@mirror.example.net/x\n"
        "Java in /usr/lib/jvm/java-17\n"
        "token eyJhbGciOi.eyJzdWIi.c2ln"
    )
    cleaned = clean(raw, FOLDER)
    assert cleaned == (
        "pip install from https://…/simple\n"
        "init ~/app on host\n"
        "http://127.0.0.1:8080/demo/ of https://…/x\n"
        "Java in /…\n"
        "token eyJ…"
    )
    check_clean(cleaned, [])
    for line in raw.splitlines()[:2]:
        with pytest.raises(TranscriptError):
            check_clean(line, [])


def test_transcript(tmp_path: Path) -> None:
    on = Transcript(tmp_path / "way")
    on.run("mkdir app")
    on.enter("app")
    assert on.run("pwd").endswith("/app\n")
    with on.running("sh -c 'trap \"exit 0\" INT; echo ready; while :; do sleep 0.05; done'", "ready"):
        on.run("echo $HOME")
    running = next(line for line in on.lines if line.endswith("&"))
    assert on.lines == ["$ mkdir app", "$ cd app", "$ pwd", running, "$ echo $HOME", "^C"]
    with pytest.raises(TranscriptError, match="ended with 3"):
        on.run("exit 3")
    with pytest.raises(TranscriptError, match="did not say"), on.running("echo no", "yes"):
        pass


def test_interrupted_commands(tmp_path: Path) -> None:
    on = Transcript(tmp_path / "way")
    service = "sh -c 'trap \"touch ended; exit\" INT; echo ready; while :; do sleep 0.05; done'"
    with pytest.raises(ZeroDivisionError), on.running(service, "ready"):
        raise ZeroDivisionError
    assert (tmp_path / "way" / "home" / "ended").exists()


def test_missing_requirements() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TranscriptError, match=f"port {port} is needed"):
            check_room(["sh"], [port])
    check_room(["sh"], [port])
    with pytest.raises(TranscriptError, match="no-such-program not found"):
        check_room(["sh", "no-such-program"], [])
