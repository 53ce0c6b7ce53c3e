"""Opens the traces of a process, if its config turns them on."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from typing import TYPE_CHECKING

from headwater.config.model import ServiceConfig

if TYPE_CHECKING:
    from headwater.telemetry.traces import Traces


def traces_of(config: ServiceConfig) -> AbstractContextManager[Traces | None]:
    """The traces, closed at the end of the context; None when they are off. Raises ModuleNotFoundError when they are on
    and OpenTelemetry is not installed."""
    if config.traces is None:
        return nullcontext()
    from headwater.telemetry.traces import Traces

    return closing(Traces(config.traces))
