"""Write checkpoints that wait for one of several sources."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headwater.oplog.lsn import Lsn
from tests.support.fix_api import Endpoint, make_token
from tests.support.memory_store import MemoryStore
from tests.unit.api.by_hand import StartEndpoint

SOURCES = ("default", "crm", "orders/eu", "orders/us")


@dataclass
class Deployment:
    """An endpoint of four sources, of which the store has all up to 10."""

    endpoint: Endpoint
    store: MemoryStore

    def number(self, *sources: str) -> int:
        answer = self.endpoint.write_checkpoint("u1", "phone", *sources)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["data"]["write_checkpoint"])

    def waits_for(self) -> dict[str, int]:
        write = self.store.write_checkpoint("u1/phone")
        assert write is not None
        return {source: int(lsn) for source, lsn in write.lsns.items()}


@pytest.fixture
def deployment(start_endpoint: StartEndpoint, memory_store: MemoryStore) -> Deployment:
    memory_store.others = {source: Lsn(10) for source in SOURCES[1:]}
    memory_store.commit()
    endpoint = start_endpoint(memory_store, sources=SOURCES)
    endpoint.head.lsns = {source: Lsn(20) for source in SOURCES}
    return Deployment(endpoint, memory_store)


def test_unnamed_waits_for_all_heads(deployment: Deployment) -> None:
    deployment.number()
    assert deployment.waits_for() == dict.fromkeys(SOURCES, 20)


@pytest.mark.parametrize(
    ("named", "waited"),
    [
        (["crm"], {"crm"}),
        (["crm", "default"], {"crm", "default"}),
        (["crm,default"], {"crm", "default"}),
        (["orders/eu"], {"orders/eu"}),
        (["orders"], {"orders/eu", "orders/us"}),
        ([""], set(SOURCES)),
    ],
)
def test_named_waits_for_these(deployment: Deployment, named: list[str], waited: set[str]) -> None:
    deployment.number(*named)
    assert deployment.waits_for() == dict.fromkeys(waited, 20)


@pytest.mark.parametrize("named", [["nowhere"], ["crm,nowhere"], ["orders/e"], ["x" * 5000]])
def test_unknown_source_stands_for_all(
    deployment: Deployment, named: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """An app that was shipped with the name of a source must work on once the source is gone."""
    assert deployment.number(*named) == 1
    assert deployment.waits_for() == dict.fromkeys(SOURCES, 20)
    deployment.number(*named)
    assert caplog.text.count("which is not configured") == 1


def test_new_shard_holds_nobody_up_who_names_its_tag(start_endpoint: StartEndpoint, memory_store: MemoryStore) -> None:
    sources = ("default", "orders/eu", "orders/us")
    memory_store.others = {"orders/eu": Lsn(10)}
    memory_store.commit()
    endpoint = start_endpoint(memory_store, sources=sources)
    endpoint.head.lsns = {source: Lsn(20) for source in sources}
    deployment = Deployment(endpoint, memory_store)
    deployment.number("orders")
    assert deployment.waits_for() == {"orders/eu": 20}


def test_visible_once_its_source_has_passed(deployment: Deployment) -> None:
    store = deployment.store
    with deployment.endpoint.stream("u1", client_id="phone") as stream:
        number = deployment.number("crm")
        store.others["orders/eu"] = Lsn(99)
        store.commit()
        store.others["crm"] = Lsn(19)
        store.commit()
        with deployment.endpoint.stream("u1", client_id="phone") as another:
            assert another.completed().write_checkpoint is None
        store.others["crm"] = Lsn(20)
        store.commit()
        assert stream.until(lambda client: client.write_checkpoint is not None).write_checkpoint == number


def test_later_write_to_another_source_still_waits_for_the_first(deployment: Deployment) -> None:
    deployment.number("crm")
    number = deployment.number("orders/eu")
    deployment.store.others["orders/eu"] = Lsn(20)
    deployment.store.commit()
    with deployment.endpoint.stream("u1", client_id="phone") as stream:
        assert stream.completed().write_checkpoint is None, "the write to crm has not come back"
        deployment.store.others["crm"] = Lsn(20)
        deployment.store.commit()
        assert stream.until(lambda client: client.write_checkpoint is not None).write_checkpoint == number


def test_source_that_is_down_fails_only_those_who_wait_for_it(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    deployment.endpoint.head.down = {"crm"}
    for named in ((), ("crm",), ("default,crm",)):
        refused = deployment.endpoint.write_checkpoint("u1", "phone", *named)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "HW_6007")
        assert "crm" not in refused.text, "devices don't learn the names of sources"
        assert "retry-after" in refused.headers
        assert "db.internal" not in refused.text
    assert caplog.text.count("no route to db.internal") == 1, "it is logged once, not for each request"
    assert "crm" in caplog.text
    assert deployment.number("default") == 1
    deployment.endpoint.head.down = set()
    assert deployment.number() == 2


def test_source_without_rows_yet_holds_nobody_up(start_endpoint: StartEndpoint, memory_store: MemoryStore) -> None:
    endpoint = start_endpoint(memory_store, sources=("default", "crm"))
    endpoint.head.lsns = {"default": Lsn(20), "crm": Lsn(20)}
    deployment = Deployment(endpoint, memory_store)
    deployment.number()
    assert deployment.waits_for() == {"default": 20}
    deployment.number("crm")
    assert deployment.waits_for()["crm"] == 20, "who names it waits for its rows"


def test_no_write_has_come_back_while_a_source_is_not_known(
    start_endpoint: StartEndpoint, memory_store: MemoryStore
) -> None:
    memory_store.others = {"tenants/acme": Lsn(10)}
    memory_store.commit()
    endpoint = start_endpoint(memory_store, sources=("default",), unknown_sources=True)
    endpoint.head.lsns = {"default": Lsn(20)}
    for named in ((), ("tenants",)):
        refused = endpoint.write_checkpoint("u1", "phone", *named)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "HW_6007")
    assert Deployment(endpoint, memory_store).number("default") == 1


def test_removed_source_is_waited_for_no_more(start_endpoint: StartEndpoint, memory_store: MemoryStore) -> None:
    memory_store.create_write_checkpoint(["u1/phone"], {"default": Lsn(1), "gone": Lsn(1_000)})
    endpoint = start_endpoint(memory_store)
    with endpoint.stream("u1", client_id="phone") as stream:
        assert stream.completed().write_checkpoint == 1


def test_source_that_is_removed_meanwhile(start_endpoint: StartEndpoint, memory_store: MemoryStore) -> None:
    memory_store.others = {"gone": Lsn(10)}
    memory_store.create_write_checkpoint(["u1/phone"], {"default": Lsn(1), "gone": Lsn(1_000)})
    endpoint = start_endpoint(memory_store)
    with endpoint.stream("u1", client_id="phone") as stream:
        assert stream.completed().write_checkpoint is None, "its rows are still there"
        memory_store.others.clear()
        memory_store.commit()
        assert stream.until(lambda client: client.write_checkpoint is not None).write_checkpoint == 1


def test_requested_number_and_oldest_route(deployment: Deployment) -> None:
    http, headers = deployment.endpoint.http, {"authorization": f"Token {make_token('u1')}"}
    body = {"client_id": "phone", "checkpoint_request_id": "7"}
    answer = http.post("/sync/checkpoint-request?source=crm", json=body, headers=headers)
    assert answer.json() == {"data": {"checkpoint_request_id": "7"}}
    assert deployment.waits_for() == {"crm": 20}
    deployment.store.others["crm"] = Lsn(20)
    deployment.store.commit()
    assert http.get("/write-checkpoint.json?source=crm", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("path", "waited"),
    [
        ("/sources/crm", {"crm"}),
        ("/sources/crm,default", {"crm", "default"}),
        ("/sources/orders/eu", {"orders/eu"}),
        ("/sources/orders%2Feu", {"orders/eu"}),
        ("/sources/orders", {"orders/eu", "orders/us"}),
    ],
)
def test_address_of_the_endpoint_names_sources(deployment: Deployment, path: str, waited: set[str]) -> None:
    headers = {"authorization": f"Token {make_token('u1')}"}
    answer = deployment.endpoint.http.get(f"{path}/write-checkpoint2.json?client_id=phone", headers=headers)
    assert answer.json() == {"data": {"write_checkpoint": "1"}}
    assert deployment.waits_for() == dict.fromkeys(waited, 20)
    body = {"raw_data": True}
    with deployment.endpoint.http.stream("POST", f"{path}/sync/stream", json=body, headers=headers) as stream:
        assert stream.status_code == 200
        assert "checkpoint" in next(stream.iter_lines())


def test_address_with_an_unknown_source(deployment: Deployment) -> None:
    headers = {"authorization": f"Token {make_token('u1')}"}
    answer = deployment.endpoint.http.get("/sources/nowhere/write-checkpoint2.json", headers=headers)
    assert answer.status_code == 200


def test_one_source_has_such_addresses(endpoint: Endpoint) -> None:
    """For apps that were shipped before there were several, or when there were."""
    headers = {"authorization": f"Token {make_token('u1')}"}
    for name in ("default", "gone"):
        answer = endpoint.http.get(f"/sources/{name}/write-checkpoint2.json", headers=headers)
        assert answer.status_code == 200, answer.text
