"""`headwater init`: its arguments and help."""

from __future__ import annotations

from pathlib import Path

import click

from headwater.cli.options import examples
from headwater_rules.describe.languages import Language


@click.command(
    epilog=examples(
        "headwater init",
        "headwater init --yes --uri postgresql://app:secret@localhost:5432/app",
        "headwater init --uri postgresql://app@db.example.com/app --users public.customer --sdk ts",
    )
)
@click.option("--uri", envvar="HEADWATER_SOURCE_URI", metavar="URI",
              help="The database to sync; asked for without it. HEADWATER_SOURCE_URI keeps it out of lists of "
              "processes.")  # fmt: skip
@click.option("--users", metavar="TABLE", help="The table whose ids tokens carry as `sub` (default: the likeliest).")
@click.option("--sdk", "languages", multiple=True, type=click.Choice([*(each.value for each in Language), "none"]),
              help="Print what connects an app, in this language; repeatable (default: all).")  # fmt: skip
@click.option("-d", "--directory", type=click.Path(path_type=Path, file_okay=False), default=Path(),
              show_default="here", help="Where to write the files.")  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Ask nothing.")
@click.option("--force", is_flag=True, help="Overwrite headwater.yaml and sync.yaml; .env is only added to.")
def init(
    uri: str | None, users: str | None, languages: tuple[str, ...], directory: Path, yes: bool, force: bool
) -> None:
    """Write headwater.yaml, sync.yaml and .env for a database of yours.

    Reads the names of its tables and columns and its foreign keys, no rows, and changes nothing in it. The sync config
    gives each row to the user that it names, or to those who get the row that it belongs to. All other tables are
    listed in it as comments: nothing is given to everybody unless you say so.
    """
    from headwater.cli.init.run import run

    chosen = [Language(each) for each in languages if each != "none"] if languages else list(Language)
    run(uri, directory, users=users, languages=chosen, ask=not yes, force=force)
