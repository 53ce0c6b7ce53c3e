"""Waits for the source at the start, for a limited time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from headwater.codes import Kind
from headwater.errors import HeadwaterError
from headwater.source.connect import SourceSettings, connect
from headwater.source.readiness.checks import SPARED, raise_if_fatal, source_findings
from headwater_rules.plan import TablePattern

_log = logging.getLogger(__name__)

_PAUSE = 1.0


def wait_for_source(
    settings: SourceSettings, tables: Sequence[TablePattern], stop: threading.Event, timeout: float
) -> None:
    """Return when the source is reachable and ready, or `stop` is set.

    Raises the last error after `timeout` seconds, and at once any error that waiting would not fix. With 0 the source
    is asked once: it is the replicator that waits, and tells what for.
    """
    deadline = time.monotonic() + timeout
    said = ""
    while not stop.is_set():
        try:
            with connect(settings, application_name="headwater check") as conn:
                findings = source_findings(conn, settings, tables)
            raise_if_fatal([finding for finding in findings if finding.code not in SPARED], settings)
            for finding in findings:
                _log.warning("%s", finding)
            return
        except HeadwaterError as error:
            if error.kind is Kind.RETRY and timeout <= 0:
                return
            if error.kind is not Kind.RETRY or time.monotonic() + _PAUSE > deadline:
                raise
            if str(error) != said:
                said = str(error)
                _log.warning("%s; trying again", said)
            stop.wait(_PAUSE)
