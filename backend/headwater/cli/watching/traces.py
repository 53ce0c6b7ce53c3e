"""The traces of a process, if its config says that there are any."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from headwater.config import ServiceConfig

if TYPE_CHECKING:
    from headwater.telemetry.traces import Traces


def traces_of(config: ServiceConfig) -> AbstractContextManager[Traces | None]:
    """Closed at the end of the context. Raises ModuleNotFoundError where OpenTelemetry is not installed."""
    if config.traces is None:
        return nullcontext()
    from headwater.telemetry.traces import open_traces

    return open_traces(config.traces)
