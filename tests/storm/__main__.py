"""`python -m tests.storm [--minutes 60] [--seed N]`: life after life, each from a seed of its own, and a summary.

A seed that failed is lived again with `--seed N --minutes 0`. Its folder is kept, with a log of all that was done.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import logging
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.pipeline.jobs import BulkJobs
from headwater.pipeline.settings import SparkSettings
from headwater.pipeline.spark.engine import SparkEngine
from headwater.pipeline.spark.session import Spark
from tests.storm.life import Life, Tally, setups_of
from tests.storm.plan import ROUGH, Plan, varied
from tests.support.fix_postgres import FAST


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no life after this time (default: 60)")
    parser.add_argument("--seed", type=int, default=1, help="of the first life; each after it has the next")
    parser.add_argument("--rounds", type=int, default=6, help="of each life (default: 6)")
    parser.add_argument("--writers", type=int, default=ROUGH.writers)
    parser.add_argument("--transactions", type=int, default=ROUGH.transactions, help="of each writer in a round")
    parser.add_argument("--changes", type=int, default=ROUGH.changes, help="of tables, in a round")
    parser.add_argument("--kills", type=int, default=ROUGH.kills, help="in a round")
    parser.add_argument("--apart", type=float, default=ROUGH.apart, help="share of starts as a process of its own")
    parser.add_argument("--storage", choices=["sqlite", "postgres"], default="", help="(default: each life draws)")
    parser.add_argument("--devices", type=int, default=0, help="of the Python client, of each service (default: 0)")
    parser.add_argument("--sources", type=int, default=1, help="of each service, up to four (default: 1)")
    parser.add_argument(
        "--away", type=float, help="for how many seconds one of several sources is (default: a fifth, at most 600)"
    )
    parser.add_argument("--folder", type=Path, help="for logs and stores (default: a temporary one)")
    options = parser.parse_args()
    if options.sources > 1 and options.devices:
        parser.error("--devices follow services with one source")
    plan = Plan(
        options.writers,
        options.transactions,
        options.changes,
        options.kills,
        options.apart,
        devices=options.devices,
        sources=options.sources,
        away=min(600.0, options.minutes * 60 / 5) if options.away is None else options.away,
    )
    folder = options.folder or Path(tempfile.mkdtemp(prefix="storm-"))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "errors.txt").open("ab") as errors:  # what is meant to break breaks with much noise
        os.dup2(errors.fileno(), sys.stderr.fileno())
    started, total, failed, seed = time.monotonic(), Tally(), dict[int, str](), options.seed
    spark = Spark(SparkSettings(conf={"spark.driver.memory": "700m"}, idle_minutes=0))
    bulk = BulkJobs(SparkEngine(spark))
    while True:
        tally, error = live(folder / f"seed-{seed}", bulk, seed, varied(plan, seed, options.storage), options.rounds)
        total += tally
        if error:
            failed[seed] = error
        print(f"seed {seed}: {tally.rounds} rounds, {'FAILED: ' + error if error else 'equal'}", flush=True)
        seed += 1
        if time.monotonic() - started > options.minutes * 60:
            break
    print(summary(options.seed, seed - 1, (time.monotonic() - started) / 60, total, failed))
    print(f"logs: {folder}" if failed else "")
    if not failed and options.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    spark.stop()
    return 1 if failed else 0


def live(folder: Path, bulk: BulkJobs, seed: int, plan: Plan, rounds: int) -> tuple[Tally, str]:
    """One life: what happened in it, and what was wrong, if anything was."""
    folder.mkdir(parents=True)
    tally, error = Tally(), ""
    try:
        with ExitStack() as servers:
            numbers = itertools.count(1)

            def new_server() -> EmbeddedPostgres:
                return servers.enter_context(EmbeddedPostgres(folder / f"postgres-{next(numbers)}", settings=FAST))

            services = servers.enter_context(setups_of(new_server, folder, bulk, f"storm_{seed}", plan))
            life = Life(services, seed, plan, folder / "log.txt")
            tally = life.tally
            servers.callback(life.close)
            servers.enter_context(logged(folder))
            life.begin()
            for _ in range(rounds):
                life.round()
    except Exception as failure:  # noqa: BLE001 - the next seed is tried all the same
        error = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
        (folder / "failure.txt").write_text(traceback.format_exc(), encoding="utf-8")
    if not error:
        shutil.rmtree(folder, ignore_errors=True)
    return tally, error


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """What replicators in this process say goes to a file, and where all threads were when something went wrong."""
    handler = logging.FileHandler(folder / "replicators.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(threadName)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("headwater")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    except BaseException:
        with (folder / "threads.txt").open("w", encoding="utf-8") as threads:
            faulthandler.dump_traceback(threads)
        raise
    finally:
        logger.removeHandler(handler)
        handler.close()


def summary(first: int, last: int, minutes: float, total: Tally, failed: dict[int, str]) -> str:
    """The run as a section of `runs.md`."""
    changes = ", ".join(f"{name} {count}" for name, count in sorted((total.done + total.kills).items()))
    lines = [
        f"## {datetime.now(UTC):%Y-%m-%d}, seeds {first} to {last}, {minutes:.0f} minutes",
        "",
        f"* {total.rounds} rounds ended equal, {total.sights:,} checkpoints and {total.transactions:,} transactions",
        f"* done: {changes}",
        *([f"* with a source away, rows of others took {total.calm:.1f} s at most"] if total.calm else []),
        f"* seeds that failed: {', '.join(map(str, failed)) or 'none'}",
        *(f"  * {seed}: {error}" for seed, error in failed.items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
