"""Arguments of the command that are more than a text. Raise BadParameter for what can't be read."""

from __future__ import annotations

import click
import orjson

from headwater_rules.results import Subscription


def json_object(text: str) -> dict[str, object]:
    """A JSON object."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise click.BadParameter(f"not JSON: {error.msg}, at character {error.pos + 1}") from None
    if not isinstance(found, dict):
        raise click.BadParameter('must be a JSON object, such as {"name": "value"}')
    return found


def subscription(text: str) -> Subscription:
    """`STREAM`, or `STREAM=` and a JSON object of parameters."""
    stream, given, parameters = text.partition("=")
    if not stream:
        raise click.BadParameter("names no stream; write STREAM or STREAM=JSON")
    return Subscription(stream, json_object(parameters) if given else None)
