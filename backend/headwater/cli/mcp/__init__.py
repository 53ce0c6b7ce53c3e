"""`headwater mcp`: a running service's admin API as tools for assistants, by the Model Context Protocol."""

from __future__ import annotations

import os

import click

from headwater.cli.options import examples

TOKEN = "HEADWATER_TOKEN"  # noqa: S105 - the name of a variable


_HTTP = "127.0.0.1:8090"


@click.command("mcp", epilog=examples("headwater mcp --url https://sync.example.org:8081",
                                      "headwater mcp --allow-writes",
                                      "headwater mcp --http 127.0.0.1:8090 --allow-host mcp.example.org"))  # fmt: skip
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, metavar="URL",
              help="Where the admin API answers.")  # fmt: skip
@click.option("--allow-writes", is_flag=True, help="Offer tools that change something, too: deploy, rollback, retry.")
@click.option("--http", "address", is_flag=False, flag_value=_HTTP, metavar="[HOST:PORT]",
              help=f"Serve over HTTP, at /mcp (default: {_HTTP}); each client sends a token of its own.")  # fmt: skip
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME",
              help="With --http: a name by which a proxy with TLS serves it. Can be repeated.")  # fmt: skip
def mcp_(url: str, allow_writes: bool, address: str | None, hosts: tuple[str, ...]) -> None:
    """Serve assistants by the Model Context Protocol, over standard input and output or, with --http, over HTTP.

    The token of the admin API comes from the variable HEADWATER_TOKEN, over HTTP from each request's header
    Authorization. What the token's role may not see or do, no tool shows or does.
    """
    from headwater.cli.mcp.client import AdminClient

    if address is not None:
        from headwater.cli.mcp.http import run as run_http

        run_http(AdminClient(url), address, hosts, writes=allow_writes)
        return
    if hosts:
        raise click.UsageError("--allow-host needs --http")
    from headwater.cli.mcp.server import run

    token = os.environ.get(TOKEN, "").strip()
    if not token:
        raise click.UsageError(f"set {TOKEN} to one of the service's api.tokens")
    run(AdminClient(url, token), writes=allow_writes)
