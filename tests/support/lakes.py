"""Lakes as tests write and read them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headwater.lake.directory import open_lake
from headwater.lake.export import Exporter, Round
from headwater.storage.address import StoreAddress
from headwater.storage.open import open_store
from tests.support.model_device import ModelBucket

Record = dict[str, Any]


def export(
    address: StoreAddress, root: Path, *, ops_per_file: int = 700, age: float = 0.0, reset: bool = False
) -> Round:
    """One round, as a process that begins and ends with it."""
    store = open_store(address)
    with store.open_history() as view:
        identity = view.state().store
    with open_lake(root, identity, reset=reset) as lake:
        return Exporter(store, lake, lambda: False, lambda _: None, ops_per_file).run_round(age)


def manifest_of(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "manifest.json").read_text())
    return found


def ops_of(root: Path) -> list[Record]:
    """The ops up to the checkpoint, from the files that are there, each of which has no op outside of its range."""
    found: list[Record] = []
    for path in sorted((root / "ops").glob("[!.]*.parquet")):
        first, last = map(int, path.stem.split("-"))
        records = pq.read_table(path).to_pylist()
        assert all(first <= record["op_id"] <= last for record in records)
        found += records
    ids = [record["op_id"] for record in found]
    assert len(set(ids)) == len(ids), "an op is there twice"
    return sorted((op for op in found if op["op_id"] <= manifest_of(root)["checkpoint"]), key=lambda op: op["op_id"])


def devices_of(root: Path) -> dict[str, ModelBucket]:
    """What a device has that applies the ops of a lake."""
    found: dict[str, ModelBucket] = {}
    definitions = manifest_of(root)["definitions"]
    for op in ops_of(root):
        if op["definition"] in definitions:
            found.setdefault(op["bucket"], ModelBucket()).apply(op)
    return found


def snapshot_of(root: Path, table: str) -> list[Record]:
    """The newest snapshot of current rows or buckets."""
    newest = manifest_of(root)["snapshots"][-1]
    records: list[Record] = pq.read_table(root / newest[table]).to_pylist()
    assert {record["checkpoint"] for record in records} <= {newest["checkpoint"]}
    return records


def placed(devices: Mapping[str, ModelBucket]) -> Counter[tuple[str, str, str, str]]:
    """Bucket and row of everything on a device."""
    return Counter((bucket, *row) for bucket, model in devices.items() for row in model.rows)


def assert_is_store(root: Path, address: StoreAddress) -> dict[str, ModelBucket]:
    """Hold the lake to what a device downloads now: the same rows, with the same checksums. Returns its buckets."""
    devices = devices_of(root)
    with closing(open_store(address).open_reader()) as reader, reader.snapshot() as snapshot:
        assert snapshot is not None
        assert manifest_of(root)["checkpoint"] == snapshot.checkpoint.op_id
        totals = snapshot.totals(list(devices))
    assert {name: model.checksum for name, model in devices.items()} == {
        name: total.checksum for name, total in totals.items()
    }
    rows = ((r["bucket"], r["object_type"], r["object_id"], r["subkey"]) for r in snapshot_of(root, "buckets"))
    assert Counter(rows) == placed(devices)
    return devices
