"""docs/operating.md lists every metric with its labels and every state, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from headwater.replication.status import ReplicationState
from tests.faults.catalogue import FAULTS
from tests.support.every_metric import families

OPERATING = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")


def documented() -> dict[str, set[str]]:
    (section,) = re.findall(r"^## Metrics\n(.*?)^## ", OPERATING, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `([a-z_]+)(?:\{([a-z,]*)\})?` \|", section, re.MULTILINE)
    assert len(dict(rows)) == len(rows), "each stands there once"
    return {name: set(filter(None, labels.split(","))) for name, labels in rows}


def test_every_metric_is_documented() -> None:
    exported = {}
    for family in families():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        exported[name] = set(family.samples[0].labels) - {"le"}
    assert documented() == exported


def test_every_state_is_documented() -> None:
    (section,) = re.findall(r"^\| state \| meaning .*?\n\|[-|]*\n(.*?)\n\n", OPERATING, re.MULTILINE | re.DOTALL)
    assert {line.split("|")[1].strip() for line in section.splitlines()} == {state.value for state in ReplicationState}


def test_number_of_faults() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 40
    assert "injects forty faults" in OPERATING
