"""A device beyond its limits, with the stock SDK: it works with what it gets, and comes back by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.sync.request import RequestLimits
from tests.support.fix_api import Endpoint, make_token
from tests.support.fix_devices import Device, DeviceFactory
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.e2e

LIMIT = 10


def join(endpoint: Endpoint, memberships: int) -> None:
    endpoint.store.set_lookup(endpoint.membership("u1"), [f'["l{number}"]' for number in range(memberships)])
    endpoint.store.commit()


def sees(device: Device, *ids: str) -> None:
    device.wait_for("SELECT id FROM todos ORDER BY id", [{"id": each} for each in ids])


def test_device_without_stream_over_limit(
    memory_store: MemoryStore, start_endpoint: Callable[..., Endpoint], device_factory: DeviceFactory
) -> None:
    endpoint = start_endpoint(memory_store, requests=RequestLimits(max_buckets=LIMIT))
    memory_store.put(endpoint.bucket("mine", "u1"), "own")
    memory_store.put(endpoint.bucket("shared", "l0"), "shared")
    join(endpoint, 1)
    device = device_factory(str(endpoint.http.base_url), make_token(), {"todos": {"text": "text"}})
    device.connect()
    sees(device, "own", "shared")
    join(endpoint, LIMIT + 1)
    sees(device, "own")
    join(endpoint, LIMIT - 1)
    memory_store.put(endpoint.bucket("mine", "u1"), "later")
    memory_store.commit()
    sees(device, "later", "own")
    join(endpoint, 1)
    sees(device, "later", "own", "shared")
    assert device.status()["download_error"] is None
