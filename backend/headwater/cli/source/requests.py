"""`headwater source resync`, `skip` and `audit`: submit work to the running replicator and wait for it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import click
import orjson

from headwater.cli.config import ServiceConfig
from headwater.cli.existing_store import existing_store
from headwater.cli.options import to_json
from headwater.cli.progress import WaitDisplay, polled
from headwater.errors import HeadwaterError
from headwater.oplog.lsn import format_lsn, parse_lsn
from headwater.replication.requests import RequestKind
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.store import Request, RequestState
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter

_NO_REPLICATOR = "no replicator of the source is running; the request waits until one does (`headwater serve`)"
_SHOWN_ROWS = 20


def resync(config: ServiceConfig, tables: Sequence[str], *, wait: bool) -> None:
    """Compare tables with the source and repair differences. Raises HW_8201."""
    result = _ask(config, RequestKind.RESYNC, {"tables": list(tables)}, wait=wait)
    if result is not None:
        _show_counts(result, "repaired")


def skip(config: ServiceConfig, lsn: str) -> None:
    """Skip a transaction that holds up the stream. Raises HW_8201, and HW_8202 for an invalid LSN."""
    try:
        position = format_lsn(parse_lsn(lsn))
    except ValueError:
        raise HeadwaterError(f"{lsn!r} is not an LSN", "--lsn", "write it like 0/1A2B3C", code="HW_8202") from None
    _ask(config, RequestKind.SKIP, {"lsn": position}, wait=True)
    click.echo(f"the transaction at {position} is skipped; all tables are compared with the source")


def audit(config: ServiceConfig, tables: Sequence[str], *, repair: bool, wait: bool, as_json: bool) -> int:
    """Compare the source, the current rows and the history that devices receive, for several sources one after the
    other. Returns the exit code: 1 when something differs and was not repaired. Raises HW_8201."""
    if tables or len(config.sources) < 2:
        return _audit(config, tables, repair=repair, wait=wait, as_json=as_json)
    codes = []
    for one in config.by_source():
        click.echo(f"source {one.source().name}", err=as_json)
        codes.append(_audit(one, tables, repair=repair, wait=wait, as_json=as_json))
    return max(codes)


def _audit(config: ServiceConfig, tables: Sequence[str], *, repair: bool, wait: bool, as_json: bool) -> int:
    result = _ask(config, RequestKind.AUDIT, {"tables": list(tables), "repair": repair}, wait=wait)
    if result is None:
        return 0
    if as_json:
        click.echo(to_json(result))
    else:
        _show_counts(result, "repaired" if repair else "differ")
        for row in result["rows"][:_SHOWN_ROWS]:
            columns = f" ({', '.join(row['columns'])})" if row.get("columns") else ""
            click.echo(f"  {row['table']} {row['row']}: {row['problem']}{columns}")
        for bucket in result.get("buckets", [])[:_SHOWN_ROWS]:
            click.echo(f"  bucket {bucket['bucket']}: {bucket['problem']}")
    failed = any(table["problem"] for table in result.get("computed", []))
    wrong = bool(result["differences"] or result.get("buckets") or result.get("lookups") or failed)
    return 1 if wrong and not repair else 0


def _show_counts(result: dict[str, Any], word: str) -> None:
    click.echo(f"compared {result['rows_compared']:,} rows of {', '.join(result['tables']) or 'no table'}")
    for table, count in result["differences"].items():
        click.echo(f"  {table}: {count:,} rows {word}")
    if not result["differences"]:
        click.echo("  no row differs")
    for table in result.get("computed", []):
        click.echo(f"  computed table {table['table']}: {_of_computed(table, word)}")
    if result["ops"]:
        click.echo(f"  devices are sent {result['ops']:,} ops")


def _of_computed(table: dict[str, Any], word: str) -> str:
    if table["problem"]:
        return f"not compared: {table['problem']}"
    of = f"{table['differ']:,} of {table['rows']:,} rows {word}, by its query as of {table['lsn']}"
    return f"{of}; its rows were as of {table['rows_as_of']}"


def _ask(config: ServiceConfig, kind: str, payload: dict[str, object], *, wait: bool) -> dict[str, Any] | None:
    """The result of a request; None without `wait`."""
    with existing_store(config) as store, contextlib.closing(open_store(config.storage).open_reader()) as reader:
        number = store.submit(kind, config.source().name, orjson.dumps(payload).decode())
        if not wait:
            runs = _followed(reader, config.source().name)
            click.echo(f"request {number} is submitted" + ("" if runs else f"; {_NO_REPLICATOR}"))
            return None
        return _wait(store, reader, number, config.source().name)


def _followed(reader: StoreReader, source: str) -> bool:
    """Whether a replicator of the source runs: those of others don't do its work."""
    return bool(reader.replicator_status(source).runs)


def _wait(store: StoreWriter, reader: StoreReader, number: int, source: str) -> dict[str, Any]:
    with WaitDisplay(f"request {number} continues without this command") as display:
        for request in polled(lambda: _request(store, number)):
            match request.state:
                case RequestState.WAITING:
                    display.say("waiting for its turn" if _followed(reader, source) else _NO_REPLICATOR)
                case RequestState.RUNNING:
                    display.say(request.progress if _followed(reader, source) else _NO_REPLICATOR)
                case RequestState.FAILED:
                    raise HeadwaterError(orjson.loads(request.result).get("error", "no reason given"), code="HW_8201")
                case RequestState.DONE:
                    break
    result: dict[str, Any] = orjson.loads(request.result)
    return result


def _request(store: StoreWriter, number: int) -> Request:
    request = store.request(number)
    if request is None:
        raise HeadwaterError("the request is gone", f"request {number}", "submit it again", code="HW_8201")
    return request
