"""`python -m tests.faults`: injects faults one at a time into a service, and looks whether each is named within ten
seconds, with what to do about it, by `headwater source status`, `headwater doctor` and the log, and never as a stream
that is 0.0 s behind. Ends with 0 when all were. `--write` writes the table into docs/operating.md.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.catalogue import FAULTS, Fault
from tests.faults.page import PAGE, in_page
from tests.faults.world import World
from tests.support.postgres_versions import postgres_of

MAJOR = 17  # the first that can lack a standby of the slot
_CALM = re.compile(r"state     (streaming|re-syncing) since [^,]*, 0\.0 s behind")


@dataclass
class Verdict:
    """After how many seconds somebody asked, and what was not said."""

    seconds: float
    missing: list[str] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return "; ".join(self.missing) or f"named after {self.seconds:.1f} s"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", default="", help="faults whose name has one of these, with commas between")
    parser.add_argument("--seconds", type=float, default=10.0, help="until a fault is to be named (default: 10)")
    parser.add_argument("--patience", type=float, default=90.0, help="until it is well again (default: 90)")
    parser.add_argument("--verbose", action="store_true", help="print what was said, of those that were not named")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}, and inject nothing")
    options = parser.parse_args(arguments)
    if options.write:
        PAGE.write_text(in_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="headwater-faults-"))
    folder.chmod(0o755)  # Postgres runs as another user
    chosen = [fault for fault in FAULTS if any(part in fault.name for part in options.only.split(","))]
    failed = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with World(folder, postgres_of(MAJOR)) as world:
        for number, fault in enumerate(chosen, 1):
            world.make_well(options.patience)
            verdict = inject(world, fault, options.seconds)
            failed += bool(verdict.missing)
            print(f"{number:2} {'FAIL' if verdict.missing else 'ok  '} {fault.name}: {verdict}", flush=True)
            if verdict.missing and options.verbose:
                for where, text in verdict.said.items():
                    print(f"--- {where}\n{text}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(chosen) - failed} of {len(chosen)} faults were named within {options.seconds:.0f} s")
    return 1 if failed else 0


def inject(world: World, fault: Fault, seconds: float) -> Verdict:
    """Look until it is named everywhere, or somebody who asked when time was up was not told."""
    mark = world.log.stat().st_size
    with fault.inject(world):
        began, verdict = time.monotonic(), Verdict(0.0)
        for asking_at in (0.0, 0.4 * seconds, seconds):
            if (asked := time.monotonic() - began) > asking_at > 0 and asking_at < seconds:
                continue
            time.sleep(max(0.0, asking_at - asked))
            asked = time.monotonic() - began
            verdict = look(world, fault, mark)
            verdict.seconds = asked
            if not verdict.missing:
                break
        if verdict.seconds > 2 * seconds:  # a busy machine has as long again
            verdict.missing.append(f"nobody could ask again before {verdict.seconds:.0f} s")
        return verdict


def look(world: World, fault: Fault, mark: int) -> Verdict:
    """What is said now, and what is missing in it."""
    with ThreadPoolExecutor(2) as both:
        status, doctor = both.map(world.run, ("source status", "doctor"))
    said = {"status": status.out + status.err, "doctor": doctor.out + doctor.err}
    said["log"] = world.log.read_bytes()[mark:].decode(errors="replace")
    verdict = Verdict(0.0, said=said)
    for where in fault.where:
        verdict.missing += fault.missing(where, said[where])
    if not fault.flows:
        if _CALM.search(status.out):
            verdict.missing.append("status says that it streams, 0.0 s behind")
        if status.code == 0 and "state     streaming" in status.out:
            verdict.missing.append("status exits with 0")
    return verdict


if __name__ == "__main__":
    sys.exit(main())
