"""JSON without loss: numbers keep their text, and every string that was read can be written again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

_WHOLE = re.compile(r"(-?\d+)\.0+")


@dataclass(frozen=True, slots=True)
class Number:
    """A number as the JSON wrote it: a numeric column can hold digits that a float loses."""

    text: str

    @property
    def plain(self) -> str:
        """The text, without a fraction of zeros (1.0): some clients add one, and integer columns refuse it."""
        whole = _WHOLE.fullmatch(self.text)
        return self.text if whole is None else whole[1]


Json: TypeAlias = "bool | str | Number | Sequence[Json] | Mapping[str, Json] | None"


def read_json(text: bytes | str) -> Json:
    """Parse JSON. Raises ValueError when it is invalid or nested too deeply."""
    try:
        value: Json = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None
    return value


def write_json(value: Json) -> str:
    """Write ASCII JSON with sorted keys, so that equal values give equal texts. Raises ValueError when the value is
    nested too deeply."""
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
