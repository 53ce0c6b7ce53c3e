"""`python -m tests.faults`: injects faults one at a time into a service, and looks whether each is named within ten
seconds, with what to do about it, by `headwater source status`, `headwater doctor` and the log, and never as a stream
that is 0.0 s behind. Ends with 0 when all were.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.catalogue import FAULTS, Fault
from tests.faults.service import FaultyService
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
        return "; ".join(self.missing) or f"named to who asked after {self.seconds:.1f} s"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", default="", help="faults whose name has one of these, with commas between")
    parser.add_argument("--seconds", type=float, default=10.0, help="until a fault is to be named (default: 10)")
    parser.add_argument("--patience", type=float, default=90.0, help="until it is well again (default: 90)")
    parser.add_argument("--verbose", action="store_true", help="print what was said, of those that were not named")
    options = parser.parse_args(arguments)
    chosen = [fault for fault in FAULTS if any(part in fault.name for part in options.only.split(","))]
    failed, began = 0, time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with FaultyServices(options.patience) as services:
        for number, fault in enumerate(chosen, 1):
            verdict = attempt(services, fault, options.seconds)
            failed += bool(verdict.missing)
            print(f"{number:2} {'FAIL' if verdict.missing else 'ok  '} {fault.name}: {verdict}", flush=True)
            if verdict.missing and options.verbose:
                for where, text in verdict.said.items():
                    print(f"--- {where}\n{text}", flush=True)
        services.discard()
    minutes = (time.monotonic() - began) / 60
    named = len(chosen) - failed
    print(f"{named} of {len(chosen)} faults were named within {options.seconds:.0f} s; this took {minutes:.1f} minutes")
    return 1 if failed else 0


class FaultyServices(ExitStack):
    """The service that faults are injected into, replaced when it does not recover."""

    def __init__(self, patience: float) -> None:
        super().__init__()
        self._patience = patience
        self._service: FaultyService | None = None

    def well(self) -> FaultyService:
        """A service in which rows flow."""
        if self._service is not None:
            try:
                self._service.make_well(self._patience)
            except Exception as error:  # noqa: BLE001 - whatever the last fault has left behind
                print(f"     the service is replaced: {error}", flush=True)
                self.discard()
        if self._service is None:
            self._service = self._new()
            self._service.make_well(3 * self._patience)
        return self._service

    def discard(self) -> None:
        """Do without the service that there is."""
        self._service = None
        try:
            self.close()
        except Exception as error:  # noqa: BLE001 - the faults are what counts
            print(f"     something may be left behind: {error}", flush=True)

    def _new(self) -> FaultyService:
        folder = Path(tempfile.mkdtemp(prefix="headwater-faults-"))
        folder.chmod(0o755)  # Postgres runs as another user
        self.callback(shutil.rmtree, folder, ignore_errors=True)
        return self.enter_context(FaultyService(folder, postgres_of(MAJOR)))


def attempt(services: FaultyServices, fault: Fault, seconds: float) -> Verdict:
    """Inject it. An error of whatever makes or undoes the fault counts as one that was not named."""
    verdict = Verdict(0.0)
    try:
        service = services.well()
        inject(service, fault, seconds, verdict)
    except Exception as error:  # noqa: BLE001 - the other faults are still to come
        verdict.missing.append(f"{type(error).__name__}: {error}")
        verdict.said["traceback"] = traceback.format_exc()
        services.discard()
    return verdict


def inject(service: FaultyService, fault: Fault, seconds: float, verdict: Verdict) -> None:
    """Look until it is named everywhere, or somebody who asked when time was up was not told."""
    mark = service.log.stat().st_size
    with fault.inject(service):
        began = time.monotonic()
        for asking_at in (0.0, 0.4 * seconds, seconds):
            if (asked := time.monotonic() - began) > asking_at > 0 and asking_at < seconds:
                continue
            time.sleep(max(0.0, asking_at - asked))
            asked = time.monotonic() - began
            verdict.seconds = asked
            look(service, fault, mark, verdict)
            if not verdict.missing:
                break
        if verdict.seconds > 2 * seconds:  # a busy machine has as long again
            verdict.missing.append(f"nobody could ask again before {verdict.seconds:.0f} s")


def look(service: FaultyService, fault: Fault, mark: int, verdict: Verdict) -> None:
    """What is said now, and what is missing in it."""
    with ThreadPoolExecutor(2) as both:
        status, doctor = both.map(service.run, ("source status", "doctor"))
    said = {"status": status.out + status.err, "doctor": doctor.out + doctor.err}
    said["log"] = service.log.read_bytes()[mark:].decode(errors="replace")
    verdict.said, verdict.missing = said, []
    for where in fault.where:
        verdict.missing += fault.missing(where, said[where])
    if not fault.flows:
        if _CALM.search(status.out):
            verdict.missing.append("status says that it streams, 0.0 s behind")
        if status.code == 0 and "state     streaming" in status.out:
            verdict.missing.append("status exits with 0")


if __name__ == "__main__":
    sys.exit(main())
