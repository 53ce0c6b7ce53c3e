"""`headwater init`: its arguments and help."""

from __future__ import annotations

from pathlib import Path

import click

from headwater.cli.options import examples
from headwater_rules.schema import Language


@click.command(
    epilog=examples(
        "headwater init",
        "headwater init --yes --uri postgresql://app:secret@localhost:5432/app",
        "headwater init --app web --upload --uri postgresql://app:secret@localhost:5432/app",
        "headwater init --uri postgresql://app@db.example.com/app --users public.customer --sdk ts",
        "headwater init --uri postgresql://app@db.example.com/app --uri crm=postgresql://app@crm.example.com/crm",
    )
)
@click.option("--uri", "uris", multiple=True, envvar="HEADWATER_SOURCE_URI", metavar="[TAG=]URI",
              help="The database to sync; asked for without it. Repeatable: rules name the tables of the others by "
              "their tags. HEADWATER_SOURCE_URI (spaces between them) keeps them out of process lists.")  # fmt: skip
@click.option("--users", metavar="TABLE",
              help="The table of those who log in; tokens carry the id as `sub` (default: the likeliest).")  # fmt: skip
@click.option("--upload/--no-upload", default=None,
              help="Let devices write to the rows that are theirs (default: asks; no, with --yes).")  # fmt: skip
@click.option("--app", type=click.Choice(["web"]), help="Write a page that shows the rows of a table, in app/.")
@click.option("--sdk", "languages", multiple=True, type=click.Choice([*(each.value for each in Language), "none"]),
              help="Print how an app connects, in a language; repeatable (default: all; none with --app).")  # fmt: skip
@click.option("-d", "--directory", type=click.Path(path_type=Path, file_okay=False), default=Path(),
              show_default="here", help="Where to write the files.")  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Ask nothing.")
@click.option("--force", is_flag=True, help="Overwrite headwater.yaml and sync.yaml; .env is only added to.")
def init(
    uris: tuple[str, ...],
    users: str | None,
    upload: bool | None,
    app: str | None,
    languages: tuple[str, ...],
    directory: Path,
    yes: bool,
    force: bool,
) -> None:
    """Write headwater.yaml, sync.yaml and .env for a database of yours, or several.

    Reads the names of its tables and columns and its foreign keys, no rows, and changes nothing in it. The sync config
    gives each row to the user that it names, or to those who get the row that it belongs to. All other tables are
    listed in it as comments: nothing is given to everybody unless you say so.

    With --app web it also writes a page that runs, and reads the id of a user to sign in there at first.
    """
    from headwater.cli.init.run import run

    everything = [] if app else list(Language)
    chosen = [Language(each) for each in languages if each != "none"] if languages else everything
    run(uris, directory.absolute(), users, chosen, upload=upload, app=app is not None, ask=not yes, force=force)
