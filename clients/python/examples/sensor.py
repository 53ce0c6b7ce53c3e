"""A sensor that writes its readings to a file whether there is a network or not, and sends them when there is.

    python sensor.py --endpoint https://sync.example.com --token … --sensor kitchen

The readings are an insert-only table: they are queued and sent, and not kept. The sync config need not have them.
"""

from __future__ import annotations

import argparse
import random
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from headwater_client import ConnectOptions, Database, Table, UploadConnector

SCHEMA = {"readings": Table({"sensor": "text", "value": "real", "taken_at": "text"}, insert_only=True)}


def readings(count: int | None, every: float) -> Iterator[float]:
    """Degrees, as a real sensor would give them; without end if `count` is None."""
    value = 20.0
    while count is None or count > 0:
        value += random.uniform(-0.2, 0.2)
        yield round(value, 2)
        count = None if count is None else count - 1
        time.sleep(every)


def main() -> None:
    parser = argparse.ArgumentParser(description="A sensor that works offline")
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--sensor", default="kitchen")
    parser.add_argument("--file", type=Path, default=Path("sensor.db"))
    parser.add_argument("--count", type=int, help="end after so many readings (default: never)")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between readings (default: 10)")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds to wait at the end for what is not sent yet")
    arguments = parser.parse_args()
    with Database(arguments.file, SCHEMA) as database:
        database.connect(UploadConnector(arguments.endpoint, arguments.token), ConnectOptions(retry_delay=1))
        for value in readings(arguments.count, arguments.every):
            taken_at = datetime.now(timezone.utc).isoformat()
            database["readings"].insert(
                {"id": str(uuid.uuid4()), "sensor": arguments.sensor, "value": value, "taken_at": taken_at}
            )
        deadline = time.monotonic() + arguments.wait
        while database.uploads_waiting and time.monotonic() < deadline:
            time.sleep(0.1)
        print(f"{database.uploads_waiting} readings wait for the network")  # noqa: T201 - an example speaks


if __name__ == "__main__":
    main()
