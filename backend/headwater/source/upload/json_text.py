"""JSON without loss: numbers keep their text, and any string can be written down again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

_WHOLE = re.compile(r"(-?\d+)\.0+")


@dataclass(frozen=True, slots=True)
class Number:
    """A number as the JSON had it, for a numeric column may hold what no float does."""

    text: str

    @property
    def plain(self) -> str:
        """A whole number without its fraction of zeros, which some clients add and no integer column takes."""
        whole = _WHOLE.fullmatch(self.text)
        return self.text if whole is None else whole[1]


Json: TypeAlias = "bool | str | Number | Sequence[Json] | Mapping[str, Json] | None"


def read_json(text: bytes | str) -> Json:
    """The value of a JSON text. Raises ValueError for what is none, or is nested too deep."""
    try:
        value: Json = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None
    return value


def write_json(value: Json) -> str:
    """ASCII, keys in order: the same value gives the same text. Raises ValueError for what is nested too deep."""
    try:
        return _written(value)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _written(value: Json) -> str:
    match value:
        case Number():
            return value.text
        case None | bool() | str():
            return json.dumps(value)
        case Mapping():
            return "{" + ",".join([f"{json.dumps(key)}:{_written(value[key])}" for key in sorted(value)]) + "}"
        case _:
            return "[" + ",".join([_written(each) for each in value]) + "]"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
