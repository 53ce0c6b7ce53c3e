"""Parses structured arguments. Raises BadParameter for invalid ones."""

from __future__ import annotations

import re

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


def claim(text: str) -> tuple[str, object]:
    """Parse `NAME=VALUE`. The value is JSON if it parses as such, otherwise text."""
    name, given, value = text.partition("=")
    if not name or not given:
        raise click.BadParameter("write NAME=VALUE")
    if name in {"sub", "aud", "iat", "exp"}:
        raise click.BadParameter(f"{name} is set by USER, --audience and --expires")
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value


_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(text: str) -> int:
    """Parse a time to seconds: a number of seconds, or a number with a unit, as `90s`, `15m`, `1h`, `7d`."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text, re.ASCII)
    if found is None or int(found[1]) == 0:
        raise click.BadParameter("write it like 90s, 15m, 1h or 7d")
    return int(found[1]) * _UNITS[found[2]]


def subscription(text: str) -> Subscription:
    """`STREAM`, or `STREAM=` and a JSON object of parameters."""
    stream, given, parameters = text.partition("=")
    if not stream:
        raise click.BadParameter("has no stream; write STREAM or STREAM=JSON")
    return Subscription(stream, json_object(parameters) if given else None)
