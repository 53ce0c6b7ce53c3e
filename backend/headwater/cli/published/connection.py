"""`headwater test-connection`: checks whether the source can be replicated from this machine with this config."""

from __future__ import annotations

import click

from headwater.config.model import ServiceConfig
from headwater.source.connect import connect
from headwater.source.readiness.checks import source_findings


def test_connections(config: ServiceConfig) -> int:
    """Connect to each source and print its problems. Returns the exit code: 1 when a problem prevents replication.
    Raises SourceUnreachable."""
    ready = True
    for source in config.sources or (config.source(),):
        with connect(source, application_name="headwater test-connection") as conn:
            findings = source_findings(conn, source, ())
        for finding in findings:
            click.echo(f"{'error' if finding.fatal else 'warning'}: {finding}")
        fatal = any(finding.fatal for finding in findings)
        click.echo(f"{source.address}: {'not ready' if fatal else 'ready to be replicated'}")
        ready = ready and not fatal
    return 0 if ready else 1
