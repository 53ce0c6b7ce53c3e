"""The group `headwater explain`: its commands, their arguments and their help."""

from __future__ import annotations

import functools
from collections.abc import Callable

import click

from headwater.cli.arguments import json_object, subscription
from headwater.cli.options import config_options, examples, load
from headwater.config.given import ConfigSource
from headwater_rules.results import Subscription, SyncRequest


@click.group()
def explain() -> None:
    """Explain what a user's devices are sent now, and why."""


def _request_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that describe a client; the command gets them as a SyncRequest."""

    @click.argument("user")
    @config_options
    @click.option("--claims", type=json_object, metavar="JSON", help="Further claims of the user's token.")
    @click.option("--params", type=json_object, metavar="JSON", help="Parameters that the client sends.")
    @click.option("--subscribe", "subscriptions", type=subscription, multiple=True, metavar="STREAM[=JSON]",
                  help="A stream that the client subscribes to, and its parameters. Can be repeated.")  # fmt: skip
    @click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
    @functools.wraps(command)
    def wrapped(
        user: str,
        *,
        claims: dict[str, object] | None,
        params: dict[str, object] | None,
        subscriptions: tuple[Subscription, ...],
        **options: object,
    ) -> None:
        if (claims or {}).get("sub", user) != user:
            raise click.BadParameter("names another user", param_hint="'--claims'")
        command(request=SyncRequest({**(claims or {}), "sub": user}, params, subscriptions=subscriptions), **options)

    return wrapped


@explain.command("user", epilog=examples("headwater explain user u1",
                                          """headwater explain user u1 --claims '{"org": "o1"}' --json"""))  # fmt: skip
@_request_options
def user_(configs: ConfigSource, request: SyncRequest, as_json: bool) -> None:
    """Show the buckets that USER's devices are sent, with their rows and reasons, and why other streams give nothing.

    Shows what the service sends, at the newest checkpoint. For a sync config that is not deployed, see
    `headwater rules preview`.
    """
    from headwater.cli.explain.show import show_user

    show_user(load(configs, warn=False), request, as_json=as_json)


@explain.command("row", epilog=examples("headwater explain row u1 todos 4711",
                                         "headwater explain row u1 public.todos 4711 --json"))  # fmt: skip
@_request_options
@click.argument("table")
@click.argument("row_id", metavar="ID")
def row_(configs: ConfigSource, request: SyncRequest, table: str, row_id: str, as_json: bool) -> None:
    """Explain whether USER's devices have the row ID of TABLE, and why.

    If they do, it shows the stream, its values, the op and the commit. If not, it shows the condition that fails. TABLE
    and ID are those on devices, or those in the source if TABLE has a schema. The exit code is 1 when they don't have
    the row.
    """
    from headwater.cli.explain.show import show_row

    show_row(load(configs, warn=False), request, table, row_id, as_json=as_json)
