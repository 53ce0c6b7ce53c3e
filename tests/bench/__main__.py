"""`python -m tests.bench [name …] [--scale 1.0] [--large]`: run benchmarks and print their figures."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable
from pathlib import Path

from tests.bench import (
    churn,
    client,
    computed,
    connect,
    curves,
    decode,
    download,
    fleet,
    joins,
    latency,
    live,
    load,
    report,
    reprocess,
    resync,
    rules,
    schemas,
    snapshot,
    sources,
    start,
    storage,
    studio,
    windows,
)
from tests.bench.service import STORE, cores

_QUICK = ("rules", "decode", "live", "latency", "download")
_QUICK_SCALE = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Figures beside yardsticks of one run.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"which: {', '.join(_ALL)} (default: all)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size (default: 1.0)")
    parser.add_argument(
        "--quick", action="store_true", help=f"{', '.join(_QUICK)} at a tenth of the size, in about two minutes"
    )
    parser.add_argument(
        "--store", choices=["sqlite", "postgres"], default="sqlite", help="which store is served from (default: sqlite)"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the figures there, as tables")
    parser.add_argument(
        "--large",
        action="store_true",
        help="resync also changes a table of 1,000,000 rows in every way; load has 10,000 streams and 1,000,000 ops;"
        " curves go to 3,000,000 rows",
    )
    arguments = parser.parse_args()
    where = f"{cores()} cores, {platform.platform()}, Python {platform.python_version()}, store {arguments.store}"
    print(f"headwater benchmarks on {where}")
    os.environ[STORE] = arguments.store
    scale = arguments.scale * (_QUICK_SCALE if arguments.quick else 1)
    for name in arguments.names or (_QUICK if arguments.quick else _ALL):
        if name not in _ALL:
            parser.error(f"no benchmark {name!r}; there are {', '.join(_ALL)}")
        _ALL[name](scale, arguments.large)
        if arguments.markdown is not None:
            report.write_markdown(arguments.markdown, f"Benchmarks on {where}")


def _resync(scale: float, large: bool) -> None:
    rows = int(1_000_000 * scale)
    resync.to_device([*resync.SIZES, rows] if large else resync.SIZES)
    resync.run(rows)


def _load(scale: float, large: bool) -> None:
    streams, ops = (10_000, 1_000_000) if large else (2_000, 250_000)
    load.run(max(10, int(streams * scale)), int(ops * scale))


def _curves(scale: float, large: bool) -> None:
    sizes = [10_000, 100_000, 1_000_000] + ([3_000_000] if large else [])
    curves.run([int(rows * scale) for rows in sizes])


def _sources(scale: float, _: bool) -> None:
    for count in (2, 10, 100):
        sources.cost(max(2, int(count * scale)))
    for apart in (False, True):
        sources.beside(max(100, int(1_000 * scale)), apart=apart)


_ALL: dict[str, Callable[[float, bool], None]] = {
    "start": lambda scale, _: start.run(int(13_000 * scale)),
    "snapshot": lambda scale, _: snapshot.run(int(1_000_000 * scale)),
    "reprocess": lambda scale, _: reprocess.run(int(1_000_000 * scale)),
    "resync": _resync,
    "rules": lambda scale, _: rules.run(int(100_000 * scale)),
    "decode": lambda scale, _: decode.run(int(200_000 * scale)),
    "live": lambda scale, _: live.run(int(2_000 * scale)),
    "latency": lambda scale, _: latency.run(max(100, int(500 * scale))),
    "client": lambda scale, _: client.run(int(1_000_000 * scale)),
    "fleet": lambda scale, _: fleet.run(int(2_000 * scale)),
    "download": lambda scale, _: download.run(int(500_000 * scale)),
    "load": _load,
    "connect": lambda scale, _: connect.run(max(10, int(10_000 * scale))),
    "storage": lambda scale, _: storage.run(int(500_000 * scale)),
    "churn": lambda scale, _: churn.run(int(100_000 * scale)),
    "sources": _sources,
    "schemas": lambda scale, _: schemas.run(max(2, int(500 * scale))),
    "computed": lambda scale, _: computed.run(int(1_000_000 * scale)),
    "joins": lambda scale, _: joins.run(int(100_000 * scale)),
    "windows": lambda scale, _: windows.run(int(1_000_000 * scale)),
    "curves": _curves,
    "studio": lambda scale, _: studio.run(*(max(60, int(count * scale)) for count in (200, 1_000, 5_000))),
}


if __name__ == "__main__":
    main()
