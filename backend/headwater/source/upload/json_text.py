"""JSON without loss: numbers keep their text, and every string that was read can be written again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from json.scanner import py_make_scanner  # type: ignore[attr-defined]  # not in the stubs
from typing import TypeAlias, TypeVar

Parsed = TypeVar("Parsed")

MOST_NAMES = 10_000
"""The most names in an object. Stock clients send one for each column."""

LEAST_BYTES = 8
"""Bytes of JSON that there are at least for each array or object, on average, unless a text is small. The shortest
change that a client sends has two of them in some 60 bytes."""

_SMALL = 1 << 18  # bytes of a text that is parsed quickly whatever is in it
_MOST_ARRAYS = 50_000

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


class TooManyValuesError(ValueError):
    """JSON has too many arrays and objects, or too many names in an object."""


def read_json(text: bytes | str) -> Json:
    """Parse JSON, without keeping other threads from running for long. Raises ValueError when it is invalid or nested
    too deeply, and TooManyValuesError."""
    text = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
    try:
        value: Json = _decoder(text).decode(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    return value


class _Decoder(json.JSONDecoder):
    """Names what json.scanner takes from a decoder."""

    parse_array: Callable[..., object]
    parse_object: Callable[..., object]
    scan_once: Callable[..., object]


def _decoder(text: str) -> _Decoder:
    """The parser in C lets other threads run only when it calls what is given here, so at each number and object. It
    does not parse what may have very many other values in a row."""
    decoder = _Decoder(object_hook=_few_names, parse_int=Number, parse_float=Number, parse_constant=_no_constant)
    arrays, values, size = text.count("["), text.count(","), len(text)
    is_dense = (values + arrays + text.count("{")) * LEAST_BYTES > size
    if size > _SMALL and (is_dense or arrays > _MOST_ARRAYS):
        count = _Counted(size // LEAST_BYTES)
        decoder.parse_array = count(decoder.parse_array)
        decoder.parse_object = count(decoder.parse_object)
        decoder.scan_once = py_make_scanner(decoder)
    return decoder


def _few_names(found: dict[str, Json]) -> Json:
    if len(found) > MOST_NAMES:
        raise TooManyValuesError(f"an object has more than {MOST_NAMES:,} names")
    return found


class _Counted:
    """Counts calls of functions, and refuses more than `most`."""

    def __init__(self, most: int) -> None:
        self._left = most

    def __call__(self, parse: Callable[..., Parsed]) -> Callable[..., Parsed]:
        def counted(*given: object) -> Parsed:
            self._left -= 1
            if self._left < 0:
                raise TooManyValuesError(f"there are more arrays and objects than one in {LEAST_BYTES} bytes")
            return parse(*given)

        return counted


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
