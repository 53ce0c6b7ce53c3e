"""The group `headwater store`: commands, arguments and help."""

from __future__ import annotations

from pathlib import Path

import click

from headwater.cli.options import config_options, examples, load, load_without_lists, source_option
from headwater.config import ConfigSource


@click.group()
def store() -> None:
    """Work on the store: Headwater's copy of the source for devices."""


@store.command("stats", epilog=examples("headwater store stats -c headwater.yaml",
                                         "headwater store stats --top 20 --json"))  # fmt: skip
@config_options
@click.option("--top", type=click.IntRange(min=0), default=5, show_default=True, metavar="N",
              help="How many of the top buckets to show.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def stats_(configs: ConfigSource, top: int, as_json: bool) -> None:
    """Show what the store holds, its disk use, and which buckets grow.

    Reads the whole store once, while the service runs. Also lists rows that are too large for a device.
    """
    from headwater.cli.store.stats import show_stats

    show_stats(load_without_lists(configs), top=top, as_json=as_json)


@store.command("forget", epilog=examples("headwater store forget --table public.people --id 42 --dry-run",
                                          "headwater store forget --contains 'ann@example.com' --yes"))  # fmt: skip
@config_options
@source_option
@click.option("--table", metavar="SCHEMA.NAME", help="The source table of the row to forget.")
@click.option("--id", "row_id", metavar="ID", help="The row's key; a JSON array where the key has several columns.")
@click.option("--id-too", is_flag=True,
              help="Forget the key as well. Devices then download the rest of its buckets again.")  # fmt: skip
@click.option("--contains", "text", metavar="TEXT", help="Forget this text everywhere; - reads stdin.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def forget_(
    configs: ConfigSource,
    table: str | None,
    row_id: str | None,
    id_too: bool,
    text: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Remove a value from everything that the store keeps, and prove it by searching the store again.

    Delete it in the source first: the command refuses while the source or a current row holds the value. Runs beside
    the service; see docs/forget.md.
    """
    from headwater.cli.store.forget import forget

    if (text is None) == (table is None) or (table is None) != (row_id is None):
        raise click.UsageError("give either --table and --id, or --contains")
    if id_too and row_id is None:
        raise click.UsageError("--id-too needs --table and --id")
    forget(load(configs, warn=False), table, row_id, text, id_too=id_too, dry_run=dry_run, yes=yes)


@store.command("export", epilog=examples("headwater store export ./monday.archive -c headwater.yaml",
                                          "headwater store export ./moving.archive --seal"))  # fmt: skip
@click.argument("file", type=click.Path(path_type=Path))
@config_options
@click.option("--seal", is_flag=True, help="Refuse writes to the store from then on, because another one replaces it.")
def export_(configs: ConfigSource, file: Path, seal: bool) -> None:
    """Write the whole store to FILE while the service runs.

    The file holds one consistent state, including rows of the source: protect it as you protect the store. See
    docs/backup.md.
    """
    from headwater.cli.store.archive import export_to

    export_to(load_without_lists(configs), file, seal=seal)


@store.command("import", epilog=examples("headwater store import ./monday.archive -c headwater.yaml"))
@click.argument("file", type=click.Path(path_type=Path))
@config_options
def import_(configs: ConfigSource, file: Path) -> None:
    """Build the configured store from FILE, which `headwater store export` wrote.

    All ids stay the same, whatever storage the old and the new store use: connected devices continue where they are and
    download nothing again.
    """
    from headwater.cli.store.archive import import_from

    import_from(load_without_lists(configs), file)


@store.command(epilog=examples("headwater store unseal -c headwater.yaml"))
@config_options
def unseal(configs: ConfigSource) -> None:
    """Allow writes to a store again that `headwater store export --seal` has sealed."""
    from headwater.cli.store.archive import unseal as command

    command(load_without_lists(configs))
