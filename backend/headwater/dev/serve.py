"""`python -m headwater.dev.serve --config FILE`: the endpoint with the demo's routes, started by `headwater dev`."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import click

from headwater.api.admin.explain import ExplainDesk
from headwater.api.admin.settings import AdminSettings
from headwater.api.auth.keys import StaticKeys
from headwater.api.auth.verify import Verifier
from headwater.api.http.server import bind, serve_app
from headwater.cli.api import build
from headwater.cli.supervise import EXIT_STOP, end_with_supervisor
from headwater.cli.watching.logs import set_up_logging
from headwater.config.given import ConfigSource
from headwater.config.load import load_config
from headwater.config.model import ServiceConfig
from headwater.dev.backstage import Backstage
from headwater.dev.demo_files import DemoFiles, find_demo_files
from headwater.dev.routes import Demo, demo_routes
from headwater.dev.rule_lines import RuleText
from headwater.dev.trace import Tracer
from headwater.dev.workspace import AUDIENCE
from headwater.errors import HeadwaterError
from headwater.insight.served import Limits
from headwater.storage.contract.reader import StoreReader
from headwater.storage.open import open_backend


@click.command()
@click.option("--config", type=click.Path(path_type=Path), required=True)
@click.option("--session", required=True, help="How a person opens a database session.")
def main(config: Path, session: str) -> None:
    """Serve the demo that CONFIG describes, until SIGTERM or SIGINT."""
    end_with_supervisor()
    try:
        _serve(config, session)
    except HeadwaterError as error:
        click.echo(f"headwater: {error}", err=True)
        raise SystemExit(EXIT_STOP) from None


def _serve(path: Path, session: str) -> None:
    config = load_config(ConfigSource(path=path), os.environ, Path.cwd())
    set_up_logging(config.logging.level, config.logging.format)
    files = find_demo_files()
    demo = Demo(config.source(), config.auth.keys[0], AUDIENCE)
    with closing(open_backend(config.storage).open_reader()) as reader:
        routes = [*_backstage(config, reader, files, session).routes(), *demo_routes(demo, files)]
        serve_app(build(config, routes), [bind(config.host, config.port)])


def _backstage(config: ServiceConfig, reader: StoreReader, files: DemoFiles, session: str) -> Backstage:
    limits = Limits(config.api.max_buckets_per_connection, config.api.max_parameter_query_results)
    rules = RuleText(files.rules.read_text(encoding="utf-8"))
    return Backstage(
        Verifier(StaticKeys(config.auth.keys), frozenset({AUDIENCE})),
        Tracer(reader, config.storage, config.source(), limits, rules),
        ExplainDesk(AdminSettings((), config.storage, config.sources), reader),
        rules,
        files.rules.name,
        session,
    )


if __name__ == "__main__":
    main()
