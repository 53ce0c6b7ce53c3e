"""`headwater source resync` and `headwater audit`: work that the running replicator does, asked for and waited for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
import orjson

from headwater.cli.existing_store import existing_store
from headwater.cli.watch_request import WaitDisplay
from headwater.config import ServiceConfig
from headwater.errors import HeadwaterError
from headwater.oplog.lsn import format_lsn, parse_lsn
from headwater.replication.requests import RequestKind
from headwater.storage.backend import Store
from headwater.storage.contract.requests import Request, RequestState
from headwater.storage.contract.store import StoreBusyError, StoreReader
from headwater.storage.open import open_backend

_PAUSE = 0.2
_NOBODY = "no replicator is running; it is done once one does (`headwater serve`)"
_SHOWN_ROWS = 20


class RequestFailedError(HeadwaterError):
    """The replicator could not do what it was asked for."""

    code = "HW_8201"


class SkipError(HeadwaterError):
    """What is to be skipped is not said right."""

    code = "HW_8202"


def resync(config: ServiceConfig, tables: Sequence[str], *, wait: bool) -> None:
    """Compare tables with the source and mend what differs. Raises RequestFailedError."""
    result = _ask(config, RequestKind.RESYNC, {"tables": list(map(_qualified, tables))}, wait=wait)
    if result is not None:
        _show_counts(result, "mended")


def skip(config: ServiceConfig, lsn: str) -> None:
    """Leave a transaction out that keeps the stream. Raises RequestFailedError, and SkipError for what is no LSN."""
    try:
        position = format_lsn(parse_lsn(lsn))
    except ValueError:
        raise SkipError(f"{lsn!r} is no position in the source's log", "--lsn", "write it as in 0/1A2B3C") from None
    _ask(config, RequestKind.SKIP, {"lsn": position}, wait=True)
    click.echo(f"the transaction at {position} is left out; all tables are compared with the source")


def audit(config: ServiceConfig, tables: Sequence[str], *, repair: bool, wait: bool, as_json: bool) -> int:
    """Compare source, current rows and what devices are sent. Returns the exit code: 1 when something differs and
    was not mended. Raises RequestFailedError."""
    result = _ask(config, RequestKind.AUDIT, {"tables": list(map(_qualified, tables)), "repair": repair}, wait=wait)
    if result is None:
        return 0
    if as_json:
        click.echo(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode())
    else:
        _show_counts(result, "mended" if repair else "differ")
        for row in result["rows"][:_SHOWN_ROWS]:
            columns = f" ({', '.join(row['columns'])})" if row.get("columns") else ""
            click.echo(f"  {row['table']} {row['row']}: {row['problem']}{columns}")
        for bucket in result.get("buckets", [])[:_SHOWN_ROWS]:
            click.echo(f"  bucket {bucket['bucket']}: {bucket['problem']}")
    wrong = bool(result["differences"] or result.get("buckets") or result.get("lookups"))
    return 1 if wrong and not repair else 0


def _qualified(table: str) -> str:
    return table if "." in table else f"public.{table}"


def _show_counts(result: dict[str, Any], word: str) -> None:
    click.echo(f"compared {result['rows_compared']:,} rows of {', '.join(result['tables']) or 'no table'}")
    for table, count in result["differences"].items():
        click.echo(f"  {table}: {count:,} rows {word}")
    if not result["differences"]:
        click.echo("  no row differs")
    if result["ops"]:
        click.echo(f"  devices are sent {result['ops']:,} ops")


def _ask(config: ServiceConfig, kind: str, payload: dict[str, object], *, wait: bool) -> dict[str, Any] | None:
    """The result of a request, or None when nobody waits for it."""
    with existing_store(config) as store, contextlib.closing(open_backend(config.storage).open_reader()) as reader:
        number = store.submit(kind, config.source().tag, orjson.dumps(payload).decode())
        if not wait:
            click.echo(f"request {number} is handed in" + ("" if reader.replicator_alive() else f"; {_NOBODY}"))
            return None
        return _wait(store, reader, number)


def _wait(store: Store, reader: StoreReader, number: int) -> dict[str, Any]:
    with WaitDisplay() as display:
        try:
            for request in _states(store, number):
                match request.state:
                    case RequestState.WAITING:
                        display.say("waiting for its turn" if reader.replicator_alive() else _NOBODY)
                    case RequestState.RUNNING:
                        display.say(request.progress if reader.replicator_alive() else _NOBODY)
                    case RequestState.FAILED:
                        raise RequestFailedError(orjson.loads(request.result).get("error", "no reason given"))
                    case RequestState.DONE:
                        break
        except KeyboardInterrupt:
            display.close()
            click.echo(f"request {number} goes on without this command", err=True)
            raise click.Abort from None
    result: dict[str, Any] = orjson.loads(request.result)
    return result


def _states(store: Store, number: int) -> Iterator[Request]:
    while True:
        with contextlib.suppress(StoreBusyError):  # a long transaction of the replicator: it is at work
            request = store.request(number)
            if request is None:
                raise RequestFailedError("the request is gone", f"request {number}", "hand it in again")
            yield request
        time.sleep(_PAUSE)
