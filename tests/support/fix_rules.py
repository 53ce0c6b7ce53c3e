"""A store that serves a sync config, and a quick way to run commands on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater import cli
from headwater.commands import options
from tests.support.command import Outcome, environment
from tests.support.ruled_store import RuledStore


@pytest.fixture
def ruled(tmp_path: Path) -> Iterator[RuledStore]:
    """A filled store beside a service config. Nothing is served yet."""
    ruled = RuledStore(tmp_path)
    ruled.fill()
    yield ruled
    ruled.close()


@pytest.fixture
def headwater_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    """`headwater …` in the test's folder and its own process: starting one takes a second or two."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", environment())
    for module in (cli, options):  # it would take pytest's handlers away
        monkeypatch.setattr(module, "set_up_logging", lambda *_: None)

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["headwater", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = int(str(ended.code or 0))
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run
