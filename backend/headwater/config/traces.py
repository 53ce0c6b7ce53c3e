"""Reads `traces`: where traces are sent, from the config or OpenTelemetry's environment variables."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.config.section import Section
from headwater.telemetry.trace_choice import TraceSettings

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SPOKEN = "http/protobuf"
_MOST = 60_000


def read_traces(section: Section, environment: Mapping[str, str]) -> TraceSettings | None:
    """Read the section. None when no endpoint is given, or the environment turns traces off. Adds errors and warnings
    to the findings."""
    endpoint = section.text("endpoint")
    per_minute = section.integer("per_minute", TraceSettings().per_minute, 1, _MOST)
    section.warn_unknown()
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        section.error("is not an HTTP URL", "endpoint", fix="write it like http://collector:4318")
    named = endpoint or next((environment[name] for name in _ENDPOINTS if environment.get(name)), None)
    if named is None or _off(environment):
        return None
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), _SPOKEN)
    if protocol != _SPOKEN:
        section.warn(f"traces are sent as {_SPOKEN}, whatever the environment says")
    return TraceSettings(endpoint, per_minute)


def _off(environment: Mapping[str, str]) -> bool:
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return disabled or environment.get("OTEL_TRACES_EXPORTER", "").lower() == "none"
