"""`python -m tests.bench [name …] [--scale 1.0] [--large]`: run benchmarks and print their figures."""

from __future__ import annotations

import argparse
import platform

from tests.bench import connect, decode, download, latency, live, reprocess, resync, rules, snapshot, storage
from tests.bench.world import cores


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Figures beside yardsticks of one run.")
    every = ("snapshot", "reprocess", "resync", "rules", "decode", "live", "latency", "download", "connect", "storage")
    parser.add_argument("names", nargs="*", metavar="name", help=f"which: {', '.join(every)} (default: all)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size (default: 1.0)")
    parser.add_argument(
        "--large",
        action="store_true",
        help="resync also changes tables of 1,000,000 rows in every way, which takes an hour on two cores",
    )
    arguments = parser.parse_args()
    print(f"headwater benchmarks on {cores()} cores, {platform.platform()}, Python {platform.python_version()}")
    scale = arguments.scale
    for name in arguments.names or every:
        match name:
            case "snapshot":
                snapshot.run(int(1_000_000 * scale))
            case "reprocess":
                reprocess.run(int(1_000_000 * scale))
            case "resync":
                resync.to_device([*resync.SIZES, int(1_000_000 * scale)] if arguments.large else resync.SIZES)
                resync.run(int(1_000_000 * scale))
            case "rules":
                rules.run(int(100_000 * scale))
            case "decode":
                decode.run(int(200_000 * scale))
            case "storage":
                storage.run(int(500_000 * scale))
            case "live":
                live.run(int(2_000 * scale))
            case "latency":
                latency.run(max(100, int(500 * scale)))
            case "download":
                download.run(int(500_000 * scale))
            case "connect":
                connect.run(max(10, int(10_000 * scale)))
            case _:
                parser.error(f"no benchmark {name!r}; there are {', '.join(every)}")


if __name__ == "__main__":
    main()
