"""`headwater mcp`: a running service's admin API as tools for assistants, by the Model Context Protocol."""

from __future__ import annotations

import os

import click

from headwater.cli.options import examples

TOKEN = "HEADWATER_TOKEN"  # noqa: S105 - the name of a variable


@click.command("mcp", epilog=examples("headwater mcp --url https://sync.example.org:8081",
                                      "headwater mcp --allow-writes"))  # fmt: skip
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, metavar="URL",
              help="Where the admin API answers.")  # fmt: skip
@click.option("--allow-writes", is_flag=True, help="Offer tools that change something, too: deploy, rollback, retry.")
def mcp_(url: str, allow_writes: bool) -> None:
    """Serve an assistant over standard input and output, as its program for a Model Context Protocol server.

    The token of the admin API comes from the variable HEADWATER_TOKEN. What the token's role may not see or do, no
    tool shows or does.
    """
    from headwater.cli.mcp.client import AdminClient
    from headwater.cli.mcp.server import run

    token = os.environ.get(TOKEN, "").strip()
    if not token:
        raise click.UsageError(f"set {TOKEN} to one of the service's api.tokens")
    run(AdminClient(url, token), writes=allow_writes)
