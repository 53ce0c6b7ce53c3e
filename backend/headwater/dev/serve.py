"""`python -m headwater.dev.serve --config FILE`: the endpoint with the demo's routes, started by `headwater dev`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from headwater.api.http.server import bind, serve_app
from headwater.cli.api import build
from headwater.cli.supervise import EXIT_STOP, end_with_supervisor
from headwater.cli.watching.logs import set_up_logging
from headwater.config.given import ConfigSource
from headwater.config.load import load_config
from headwater.dev.demo_files import find_demo_files
from headwater.dev.routes import Demo, demo_routes
from headwater.dev.workspace import AUDIENCE
from headwater.errors import HeadwaterError


@click.command()
@click.option("--config", type=click.Path(path_type=Path), required=True)
def main(config: Path) -> None:
    """Serve the demo that CONFIG describes, until SIGTERM or SIGINT."""
    end_with_supervisor()
    try:
        _serve(config)
    except HeadwaterError as error:
        click.echo(f"headwater: {error}", err=True)
        raise SystemExit(EXIT_STOP) from None


def _serve(path: Path) -> None:
    config = load_config(ConfigSource(path=path), os.environ, Path.cwd())
    set_up_logging(config.logging.level, config.logging.format)
    demo = Demo(config.source(), config.auth.keys[0], AUDIENCE)
    serve_app(build(config, demo_routes(demo, find_demo_files())), [bind(config.host, config.port)])


if __name__ == "__main__":
    main()
