"""What the reads of the sampling audit raise."""

from __future__ import annotations

from contextlib import closing

import pytest

from headwater.source.rows import probe
from headwater.source.rows.probe import ProbeFailedError, SourceProbe
from tests.support.fix_postgres import SourceDb


def test_connection_that_can_not_be_set_up(source_db: SourceDb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_SETTINGS", "set nonsense = 1")
    with closing(SourceProbe(source_db.settings())) as reads, pytest.raises(ProbeFailedError, match="nonsense"):
        reads.position()
