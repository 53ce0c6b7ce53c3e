"""`python -m tests.scaled [--minutes 10]`: the scaled set-up as processes, under load, while its parts are killed.

Two Postgres, a Spark master with two workers, a replicator and its standby, two endpoints, and devices. Ends with 0
when nothing was lost and all devices show what Postgres has. How long devices waited is printed as a table.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path

from tests.scaled.machines import Machines, can_be_apart
from tests.scaled.run import Gap, Run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.scaled", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no acts after this time (default: 10)")
    parser.add_argument("--rows", type=int, default=20_000, help="of the archive (default: 20,000)")
    parser.add_argument("--devices", type=int, default=6, help="each of a user of its own (default: 6)")
    parser.add_argument("--writers", type=int, default=2, help="beside the beats (default: 2)")
    parser.add_argument("--pause", type=float, default=0.05, help="of a writer, in seconds (default: 0.05)")
    parser.add_argument("--folder", type=Path, help="for logs and data (default: a temporary one)")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="headwater-scaled-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # Postgres runs as another user
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True)

    apart = can_be_apart()
    print(f"{os.cpu_count()} cores, {platform.platform()}; logs in {folder}")
    with Machines(folder, apart=apart) as machines:
        machines.start_spark()
        say("Spark's master and two workers are there")
        run = Run(machines, options.devices, options.rows, options.writers, options.pause, say)
        try:
            run.begin()
            run.acts(began + options.minutes * 60)
            run.end()
        finally:
            run.close()
    print("\n".join(_table(run.gaps)))
    if options.folder is None:
        shutil.rmtree(folder, ignore_errors=True)


def _table(gaps: list[Gap]) -> list[str]:
    lines = [
        "| act | from the kill until a commit is on all devices | worst commit | middle commit | work done after |",
        "|---|---|---|---|---|",
    ]
    for gap in gaps:
        again = "" if gap.again is None else f"{gap.again:.1f} s"
        work = "" if gap.work is None else f"{gap.work:.0f} s"
        lines.append(f"| {gap.what} | {again} | {gap.worst:.1f} s | {gap.middle * 1000:.0f} ms | {work} |")
    return lines


if __name__ == "__main__":
    main()
