"""The group `headwater upload`: its commands, their arguments and their help."""

from __future__ import annotations

import sys

import click

from headwater.cli.options import config_options, examples, load
from headwater.config.given import ConfigSource


@click.group()
def upload() -> None:
    """Show, retry or discard uploaded transactions that could not be applied."""


@upload.command("list", epilog=examples("headwater upload list -c headwater.yaml", "headwater upload list --json",
                                         "headwater upload list --after 120 --limit 20"))  # fmt: skip
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="List at most this many.")
@click.option("--after", type=click.IntRange(0), default=0, metavar="LETTER", help="List those after this one.")
def list_(configs: ConfigSource, as_json: bool, limit: int, after: int) -> None:
    """List the dead letters, oldest first: transactions that could not be applied, and why. Shows no values of rows,
    except those in messages of Postgres."""
    from headwater.cli.upload.letters import list_letters

    list_letters(load(configs, warn=False), after, limit, as_json=as_json)


@upload.command(epilog=examples("headwater upload show 12"))
@click.argument("letter", type=int)
@config_options
def show(configs: ConfigSource, letter: int) -> None:
    """Show dead letter LETTER with everything that the device sent, as JSON."""
    from headwater.cli.upload.letters import show_letter

    show_letter(load(configs, warn=False), letter)


@upload.command(epilog=examples("headwater upload retry 12 13", "headwater upload retry --all"))
@click.argument("letters", type=int, nargs=-1, metavar="LETTER…")
@click.option("--all", "every", is_flag=True, help="Retry all that wait, oldest first.")
@config_options
def retry(configs: ConfigSource, letters: tuple[int, ...], every: bool) -> None:
    """Apply dead letters now, each as the user who sent it, with the claims of its token.

    They overwrite what was written since, unless the table's conflict policy prevents it. The exit code is 1 when one
    is refused again; it then waits as before.
    """
    from headwater.cli.upload.letters import retry_letters

    if every == bool(letters):
        raise click.UsageError("name dead letters, or --all")
    sys.exit(retry_letters(load(configs, warn=False), None if every else letters))


@upload.command(epilog=examples("headwater upload discard 12"))
@click.argument("letters", type=int, nargs=-1, required=True, metavar="LETTER…")
@config_options
def discard(configs: ConfigSource, letters: tuple[int, ...]) -> None:
    """Give dead letters up, and delete their contents."""
    from headwater.cli.upload.letters import discard_letters

    discard_letters(load(configs, warn=False), letters)
