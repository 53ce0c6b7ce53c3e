"""The group `headwater rules`: commands, arguments and help."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import click

from headwater.cli.options import config_options, examples, load, load_without_lists, request_options, sources_option
from headwater.config import ConfigSource
from headwater_rules.results import SyncRequest
from headwater_rules.schema import Language, SeenSchema, SourceSchema, not_compared


@click.group()
def rules() -> None:
    """Work on sync configs."""


def _schema(configs: ConfigSource, file: Path | None) -> SeenSchema:
    """The schema in a file, or of the source."""
    from headwater.cli.source.schema import live_schema, stored_schema

    return live_schema(load(configs, warn=False)) if file is None else stored_schema(file)


def _described(configs: ConfigSource, schema: SourceSchema, text: str) -> SourceSchema:
    """A schema with the computed tables of a sync config, as the sources describe them."""
    from headwater.cli.source.schema import described

    return described(configs, schema, text)


_schema_file = click.option("--schema-file", "file_of_schema", type=click.Path(path_type=Path), metavar="FILE",
                            help="Compare with the tables in FILE, written by `headwater source schema`.")  # fmt: skip
_allow_missing = click.option("--allow-missing", is_flag=True, help="Take columns and tables that the source lacks for "
                              "ones that a migration will add.")  # fmt: skip


@rules.command(
    epilog=examples(
        "headwater rules check sync.yaml",
        "headwater rules check sync.yaml -c headwater.yaml --allow-missing",
        "headwater rules check rules/*.yaml --schema-file schema.json --format github --warnings-as-errors",
        "git show main:sync.yaml | headwater rules check - --json",
    )
)
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FILE…")
@config_options
@click.option("--schema/--no-schema", "live", default=None, help="Compare with the source's current tables, or not at "
              "all. By default they are compared if the source answers.")  # fmt: skip
@_schema_file
@_allow_missing
@click.option("--json", "form", flag_value="json", help="The same as --format json.")
@click.option("--format", "form", type=click.Choice(["text", "json", "github"]), default="text", show_default=True,
              help="For people, for editors, or for the annotations of a GitHub workflow.")  # fmt: skip
@click.option("--warnings-as-errors", is_flag=True, help="Exit with code 1 for warnings too.")
def check(
    configs: ConfigSource,
    files: tuple[Path, ...],
    live: bool | None,
    file_of_schema: Path | None,
    allow_missing: bool,
    form: str,
    warnings_as_errors: bool,
) -> None:
    """Compile sync configs and report everything that is wrong with them; - is standard input.

    They are compared with the tables of the source that the service config names: this finds tables and columns that
    the source does not have, tables that are not published or may not be read, and comparisons that are never true.
    Computed tables are described by the source, but not computed.
    The exit code is 1 when a config can't be deployed. See docs/rule-tools.md.
    """
    from headwater.cli.rules.check import check_files
    from headwater.config.origin import is_configured

    if live is not None and file_of_schema is not None:
        raise click.UsageError("give either --schema or --schema-file")
    asked = False
    if live or file_of_schema is not None:
        seen, asked = _schema(configs, file_of_schema), bool(live)
    elif live is not None:
        seen = not_compared("--no-schema")
    elif not is_configured(configs, os.environ, Path.cwd()):
        seen = not_compared("there is no service config (-c FILE), and no --schema-file")
    else:
        from headwater.cli.source.schema import found_schema

        seen, asked = found_schema(configs), True

    sys.exit(
        check_files(
            files,
            seen,
            form=form,
            allow_missing=allow_missing,
            warnings_as_errors=warnings_as_errors,
            describe=partial(_described, configs) if asked else lambda schema, _: schema,
        )
    )


@rules.command("schema", epilog=examples(
    "headwater rules schema sync.yaml --language ts --schema > AppSchema.ts",
    "headwater rules schema sync.yaml --language sql --schema-file schema.json",
))  # fmt: skip
@click.argument("file", type=click.Path(path_type=Path))
@config_options
@click.option("--schema", "live", is_flag=True, help="Compare with the source's current tables.")
@_schema_file
@click.option("--language", "-l", required=True, type=click.Choice([each.value for each in Language]),
              help="Language of the client SDK; sql is for reading.")  # fmt: skip
def schema_(configs: ConfigSource, file: Path, live: bool, file_of_schema: Path | None, language: str) -> None:
    """Print the schema that an app declares for the rows of a sync config.

    Column types come from the source (--schema) or from a file of its schema. Without either, columns selected by * are
    missing unless the config names them, and columns of unknown type are text.
    """
    from headwater.cli.rules.check import show_client_schema

    if live and file_of_schema is not None:
        raise click.UsageError("give either --schema or --schema-file")
    schema = _schema(configs, file_of_schema).schema if live or file_of_schema is not None else None
    show_client_schema(file, schema, Language(language))


_json = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")


@rules.command("explain", epilog=examples("headwater rules explain sync.yaml",
                                           "headwater rules explain sync.yaml --json"))  # fmt: skip
@click.argument("file", type=click.Path(path_type=Path))
@_json
def explain_(file: Path, as_json: bool) -> None:
    """Describe what a sync config does.

    For each stream: who gets it, which request data it reads, how that leads to buckets, and which limits a device can
    reach. For each table: what a change of each column does.
    """
    from headwater.cli.rules.check import show_explanation

    show_explanation(file, as_json=as_json)


@rules.command("json-schema", epilog=examples("headwater rules json-schema > sync-config.schema.json"))
def json_schema_() -> None:
    """Print the JSON Schema of sync configs, with which editors complete and check the YAML.

    Begin the file with: # yaml-language-server: $schema=sync-config.schema.json
    """
    from importlib.resources import files

    click.echo(files("headwater_rules").joinpath("sync-config.schema.json").read_text(encoding="utf-8"), nl=False)


@rules.command("test", epilog=examples("headwater rules test cases.yaml",
                                        "headwater rules test cases/*.yaml --rules sync.yaml",
                                        "headwater rules test cases.yaml --json"))  # fmt: skip
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FILE…")
@click.option("--rules", "config", type=click.Path(path_type=Path), metavar="FILE",
              help="Test this sync config instead of the one that each file names.")  # fmt: skip
@_json
def test_(files: tuple[Path, ...], config: Path | None, as_json: bool) -> None:
    """Run named cases: rows of the source, a user, and the rows that the user's device gets.

    No server and no database is needed. For each row that is missing or unexpected, it says by which condition. The
    exit code is 1 when a case fails, or when a file has errors. See docs/testing-rules.md.
    """
    from headwater.cli.rules.cases import run_files

    sys.exit(run_files(files, config, as_json=as_json))


_wait = click.option("--wait/--no-wait", default=True, help="Wait until devices are served it (the default).")


@rules.command(epilog=examples("headwater rules diff sync.yaml", "headwater rules diff sync.yaml --all --json",
                                "headwater rules diff sync.yaml --against main.yaml"))  # fmt: skip
@click.argument("file", type=click.Path(path_type=Path))
@config_options
@sources_option
@click.option("--against", type=click.Path(path_type=Path), metavar="FILE",
              help="Compare with this file instead of the served version.")  # fmt: skip
@click.option("--sample", type=click.IntRange(min=1), default=100_000, show_default=True, metavar="ROWS",
              help="How many rows of each table to estimate from.")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Estimate from all rows.")
@_allow_missing
@_json
def diff(
    configs: ConfigSource,
    file: Path,
    sources: tuple[str, ...],
    against: Path | None,
    sample: int,
    every: bool,
    allow_missing: bool,
    as_json: bool,
) -> None:
    """Show what a sync config would change, and what devices would download again.

    It is compared with the source's tables, as by `headwater rules check`.

    A bucket definition whose rows stay the same keeps its name, and devices keep its data. Rows and bytes come from the
    store; those of new definitions are estimated from the rows in the store.
    """
    from headwater.cli.rules.diff import show_diff
    from headwater.config.origin import is_configured

    alone = against is not None and not is_configured(configs, os.environ, Path.cwd())
    config = None if alone else load(configs, warn=False)
    show_diff(
        config,
        file,
        against,
        sources=sources,
        sample=None if every else sample,
        as_json=as_json,
        allow_missing=allow_missing,
    )


@rules.command(
    epilog=examples(
        "headwater rules preview sync.yaml --user u1",
        """headwater rules preview sync.yaml --user u1 --claims '{"org": "o1"}'""",
        """headwater rules preview sync.yaml --user u1 --subscribe 'list={"id": "l1"}'""",
    )
)
@click.argument("file", type=click.Path(path_type=Path))
@config_options
@sources_option
@click.option("--user", required=True, metavar="ID", help="The user: the token's claim sub.")
@request_options
@click.option("--rows", type=click.IntRange(min=0), default=5, show_default=True, metavar="N",
              help="How many rows of each bucket to show.")  # fmt: skip
@_json
def preview(
    configs: ConfigSource, file: Path, sources: tuple[str, ...], request: SyncRequest, rows: int, as_json: bool
) -> None:
    """Show the buckets and first rows that a user would get under a sync config, without deploying it.

    Uses the rows that are in the store. Without --subscribe, the user gets the streams with auto_subscribe.
    """
    from headwater.cli.rules.preview import show_preview

    show_preview(load(configs, warn=False), file, request, sources=sources, rows=rows, as_json=as_json)


@rules.command("deploy", epilog=examples("headwater rules deploy sync.yaml -c headwater.yaml",
                                          "headwater rules deploy sync.yaml --no-wait --note 'the new list'",
                                          "headwater rules deploy sync.yaml --force"))  # fmt: skip
@click.argument("file", type=click.Path(path_type=Path))
@config_options
@_wait
@click.option("--force", is_flag=True, help="Deploy it even if it names tables that are not published or readable.")
@_allow_missing
@click.option("--note", default="", metavar="TEXT", help="What it changes and why, for `headwater rules versions`.")
def deploy_(configs: ConfigSource, file: Path, wait: bool, force: bool, allow_missing: bool, note: str) -> None:
    """Serve devices another sync config, without a restart.

    New buckets are built from the rows in the store. Until they are complete, devices are served the previous version,
    and they keep the data of every bucket definition that does not change. See `headwater rules diff`.

    If the config names a table that exists but is not published, or that the configured role may not read, nothing is
    deployed, and the statements that fix it are shown. Nor is it if a table or column that decides who gets rows does
    not exist. With --allow-missing it is, and nobody gets rows by it until a migration has added it.
    """
    from headwater.cli.rules.versions import deploy

    deploy(load(configs, warn=False), file, wait=wait, force=force, allow_missing=allow_missing, message=note)


@rules.command(epilog=examples("headwater rules versions", "headwater rules versions --json"))
@config_options
@_json
def versions(configs: ConfigSource, as_json: bool) -> None:
    """List the versions of the sync config that were deployed, newest first."""
    from headwater.cli.rules.versions import list_versions

    list_versions(load_without_lists(configs), as_json=as_json)


@rules.command("rollback", epilog=examples("headwater rules rollback", "headwater rules rollback 3 --no-wait"))
@click.argument("version", type=int, required=False)
@config_options
@_wait
def rollback_(configs: ConfigSource, version: int | None, wait: bool) -> None:
    """Deploy an earlier version again: VERSION, or the one served before.

    It stays until the sync config file of the service changes, whatever restarts come.
    """
    from headwater.cli.rules.versions import rollback

    rollback(load(configs, warn=False), version, wait=wait)


@rules.command("show", epilog=examples("headwater rules show", "headwater rules show 3 > sync.yaml"))
@click.argument("version", type=int, required=False)
@config_options
def show_(configs: ConfigSource, version: int | None) -> None:
    """Print the text of VERSION, or of the served one."""
    from headwater.cli.rules.versions import show

    show(load_without_lists(configs), version)
