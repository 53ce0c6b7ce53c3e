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
        "WARNING: Location 'file:///opt/mirror/' is ignored\n"
        "Looking in indexes: https://me:secret@mirror.example.net/simple\n"
        f"Wrote sync.yaml in {FOLDER}/home/app on {socket.gethostname()}\n"
        "\x1b[32mReady.\x1b[0m http://127.0.0.1:8080/demo/ from https://me:secret@mirror.example.net/x   \n"
        "OK    spark    Java in /usr/lib/jvm/java-17\n"
        "token eyJhbGciOi.eyJzdWIi.c2ln\n"
    )
    cleaned = clean(raw, FOLDER)
    assert cleaned == (
        "Wrote sync.yaml in ~/app on host\n"
        "Ready. http://127.0.0.1:8080/demo/ from https://…/x\n"
        "OK    spark    Java in /…\n"
        "token eyJ…"
    )
    check_clean(cleaned, [])
    for line in raw.splitlines()[1:3]:
        with pytest.raises(TranscriptError):
            check_clean(line, [])


def test_transcript(tmp_path: Path) -> None:
    on = Transcript(tmp_path / "way")
    on.run("mkdir app")
    on.enter("app")
    on.run("pwd; seq 40", most=4)
    with on.running("sh -c 'trap \"exit 0\" INT; echo ready; while :; do sleep 0.05; done'", "ready"):
        on.run("echo $HOME")
    assert on.lines[:7] == ["$ mkdir app", "$ cd app", "$ pwd; seq 40", "~/app", "1", "… 37 more …", "39"]
    assert on.lines[-4:] == ["ready", "$ echo $HOME", "~", "^C"]
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
