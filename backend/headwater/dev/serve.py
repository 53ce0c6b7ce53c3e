"""`python -m headwater.dev.serve --config FILE`: the endpoint with the demo's routes, started by `headwater dev`."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import click

from headwater.api.admin.explain import ExplainDesk
from headwater.api.admin.settings import AdminSettings
from headwater.api.auth.keys import StaticKeys
from headwater.api.auth.verify import Verifier
from headwater.api.http.server import bind, serve_app
from headwater.cli.api import build
from headwater.cli.init.page import title_of
from headwater.cli.supervise import EXIT_STOP, end_with_supervisor
from headwater.cli.watching.logs import set_up_logging
from headwater.config.given import ConfigSource
from headwater.config.load import load_config
from headwater.config.model import ServiceConfig
from headwater.dev.backstage import Backstage
from headwater.dev.demo_files import DemoFiles, find_demo_files
from headwater.dev.routes import Demo, OwnTables, demo_routes
from headwater.dev.rule_lines import RuleText
from headwater.dev.trace import Tracer
from headwater.dev.workspace import AUDIENCE, WorkspaceError
from headwater.errors import HeadwaterError
from headwater.insight.served import Limits
from headwater.source.catalog.schema import read_outline, read_schema
from headwater.storage.contract.reader import StoreReader
from headwater.storage.open import open_backend
from headwater_rules.compiler.compile import compile_config
from headwater_rules.describe.client_schema import client_schema
from headwater_rules.propose.propose import propose


@click.command()
@click.option("--config", type=click.Path(path_type=Path), required=True)
@click.option("--session", required=True, help="How a person opens a database session.")
@click.option("--own", metavar="TABLE", help="The table of users of a database that is not the demo's.")
def main(config: Path, session: str, own: str | None) -> None:
    """Serve the demo that CONFIG describes, until SIGTERM or SIGINT."""
    end_with_supervisor()
    try:
        _serve(config, session, own)
    except HeadwaterError as error:
        click.echo(f"headwater: {error}", err=True)
        raise SystemExit(EXIT_STOP) from None


def _serve(path: Path, session: str, own: str | None) -> None:
    config = load_config(ConfigSource(path=path), os.environ, Path.cwd())
    set_up_logging(config.logging.level, config.logging.format)
    files = find_demo_files() if own is None else replace(find_demo_files(), page="own.html")
    demo = Demo(config.source(), config.auth.keys[0], AUDIENCE) if own is None else _own(config, own)
    with closing(open_backend(config.storage).open_reader()) as reader:
        routes = [*_backstage(config, reader, files, session).routes(), *demo_routes(demo, files)]
        serve_app(build(config, routes), [bind(config.host, config.port)])


def _own(config: ServiceConfig, named: str) -> OwnTables:
    source = config.source()
    people = propose(read_outline(source), named).users
    if people is None:
        raise WorkspaceError("the table of users is gone", named, "start headwater dev again")
    schema = client_schema(compile_config(config.sync_text()).plan, read_schema(source))
    tables = {table.name: {each.name: each.type.value for each in table.columns} for table in schema.tables}
    return OwnTables(
        source, config.auth.keys[0], AUDIENCE, people.table.place, people.subject, title_of(people.table), tables
    )


def _backstage(config: ServiceConfig, reader: StoreReader, files: DemoFiles, session: str) -> Backstage:
    limits = Limits(config.api.max_buckets_per_connection, config.api.max_parameter_query_results)
    rules = RuleText(config.sync_text())
    return Backstage(
        Verifier(StaticKeys(config.auth.keys), frozenset({AUDIENCE})),
        Tracer(reader, config.storage, config.source(), limits, rules, has_notes=files.page == "index.html"),
        ExplainDesk(AdminSettings((), config.storage, config.sources), reader),
        rules,
        files.rules.name if files.page == "index.html" else "sync.yaml",
        session,
    )


if __name__ == "__main__":
    main()
