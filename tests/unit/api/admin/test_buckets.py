"""What operators are told of the store is what the command says of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.api.admin.service import buckets as module
from tests.support.command import Run
from tests.support.fix_admin import AdminEndpoint

BUCKETS = "/api/headwater/v1/buckets"


def printed(run: Run, *more: str) -> Any:
    return json.loads(run("store", "stats", "--json", *more).out)


def test_as_the_command(admin: AdminEndpoint, headwater_here: Run) -> None:
    told, stats = admin.get(BUCKETS, limit=5), printed(headwater_here, "--top", "5")
    assert [each["bucket"] for each in told["buckets"]] == [each["name"] for each in stats["buckets"]["size"]]
    assert told["buckets_total"] == stats["history"]["buckets"]
    assert sorted(told["definitions"], key=str) == sorted(stats["definitions"], key=str)
    assert told["disk"] == stats["bytes"]
    assert [(each["name"], each["rows"]) for each in told["tables"]] == [
        (each["name"], each["rows"]) for each in stats["tables"]
    ]
    sizes = [each["size"] for each in told["definitions"]]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("order", ["bytes", "ops_per_row", "grown"])
def test_orders(admin: AdminEndpoint, order: str) -> None:
    found = [each[order] for each in admin.get(BUCKETS, order=order, limit=500)["buckets"]]
    assert len(found) > 3
    assert found == sorted(found, reverse=True)


def test_wrong_ones(admin: AdminEndpoint) -> None:
    for wrong in ({"limit": "501"}, {"limit": "0"}, {"order": "name"}, {"limit": "1e9"}):
        assert admin.refusal("GET", BUCKETS, 400, params=wrong)["code"] == "HW_6201"


def test_a_large_store_is_read_once_and_kept(admin: AdminEndpoint) -> None:
    seen = admin.get(BUCKETS)["seen"]
    assert admin.get(BUCKETS)["seen"] == seen


def test_a_store_that_takes_too_long(admin: AdminEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SECONDS", 0.0)
    error = admin.refusal("GET", BUCKETS, 422)
    assert (error["code"], "store stats" in str(error)) == ("HW_6203", True)
