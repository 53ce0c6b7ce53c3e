"""Reads and checks the options of the op log as a Spark source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import orjson
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headwater.errors import HeadwaterError
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.contract.history import HistoryFilter

EARLIEST, LATEST = "earliest", "latest"

_NAMES = (
    "path", "uri", "password", "schema", "definition", "bucket", "table", "snapshot", "startingOffset", "endingOffset",
    "maxOpsPerBatch",
)  # fmt: skip


class OplogOptionError(HeadwaterError):
    """An option of the source is wrong."""

    code = "HW_5201"


@dataclass(frozen=True, slots=True)
class OplogOptions:
    """What to read. With `tables`, only ops of these output tables, and CLEARs. An offset is an op id or one of the
    names above. `limit` is the largest number of ops in a micro-batch, None for any number."""

    address: StoreAddress
    where: HistoryFilter
    tables: frozenset[str]
    snapshot: bool
    start: int | str
    end: int | str
    limit: int | None


def read_options(options: Mapping[str, str]) -> OplogOptions:
    """Read the options of a query; upper and lower case in names are equal. Raises OplogOptionError."""
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(set(given) - {name.lower() for name in _NAMES})
    if unknown:
        raise OplogOptionError("there is no such option", unknown[0], f"the options are {', '.join(_NAMES)}")
    limit = given.get("maxopsperbatch")
    return OplogOptions(
        address=_address(given),
        where=HistoryFilter(tuple(_names(given, "definition")), tuple(_names(given, "bucket"))),
        tables=frozenset(_names(given, "table")),
        snapshot=_flag(given, "snapshot"),
        start=_offset(given, "startingOffset", EARLIEST),
        end=_offset(given, "endingOffset", LATEST),
        limit=None if limit is None else _whole("maxOpsPerBatch", limit, 1),
    )


def _address(given: Mapping[str, str]) -> StoreAddress:
    path, uri = given.get("path"), given.get("uri")
    if (path is None) == (uri is None):
        raise OplogOptionError(
            "one of path and uri must say where the store is", "options", "path: its directory; uri: its database"
        )
    if path is not None:
        return SqliteAddress(path.removeprefix("file:"))
    assert uri is not None
    try:
        parts = conninfo_to_dict(uri)
    except ProgrammingError:  # its message has the text, which may contain a password
        raise OplogOptionError("can't be read", "uri", "write postgresql://user:password@host/database") from None
    if "password" in parts:
        raise OplogOptionError(
            "must not contain a password: Spark shows it in plans",
            "uri",
            "give it as the option password, which is hidden",
        )
    place = f"{parts.get('host', 'localhost')}/{parts.get('dbname', '')}"
    if "password" in given:
        uri = make_conninfo(uri, password=given["password"])
    return PostgresAddress(uri, given.get("schema", "headwater"), place)


def _names(given: Mapping[str, str], option: str) -> Iterator[str]:
    """One name, or several as a JSON list."""
    text = given.get(option)
    if text is None:
        return
    if not text.startswith("["):
        yield text
        return
    try:
        names = orjson.loads(text)
    except orjson.JSONDecodeError:
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise OplogOptionError("must be one name, or a JSON list of names", option)
    yield from names


def _flag(given: Mapping[str, str], option: str) -> bool:
    text = given.get(option, "false").lower()
    if text not in {"true", "false"}:
        raise OplogOptionError("must be true or false", option)
    return text == "true"


def _offset(given: Mapping[str, str], option: str, default: str) -> int | str:
    text = given.get(option.lower(), default)
    allowed = (EARLIEST, LATEST) if default == EARLIEST else (LATEST,)
    return text if text in allowed else _whole(option, text, 0, f" or {' or '.join(allowed)}")


def _whole(option: str, text: str, least: int, others: str = "") -> int:
    if not text.isdecimal() or int(text) < least:
        raise OplogOptionError(f"must be a whole number from {least} on{others}", option)
    return int(text)
