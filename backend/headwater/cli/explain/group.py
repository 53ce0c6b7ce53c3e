"""The group `headwater explain`: its commands, their arguments and their help."""

from __future__ import annotations

import functools
from collections.abc import Callable

import click

from headwater.cli.arguments import json_object, subscription
from headwater.cli.options import config_options, examples, load
from headwater.config import ConfigSource
from headwater_rules.results import Subscription, SyncRequest


@click.group()
def explain() -> None:
    """Say what a user's devices are sent now, and why."""


def _request_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds who asks and for what; the command gets a SyncRequest."""

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
    """Show the buckets that USER's devices are sent, what they hold, and why; of other streams, why they give nothing.

    Read is what is really served, at the newest checkpoint. For a sync config that is not deployed, see
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
    """Say whether USER's devices show the row ID of TABLE, and why.

    If so: by which stream, with which values, from which op and commit. If not: the condition that fails. TABLE and ID
    are those of devices, or with a schema those of the source. The exit code is 1 when they do not show it.
    """
    from headwater.cli.explain.show import show_row

    show_row(load(configs, warn=False), request, table, row_id, as_json=as_json)
