"""What replication slots are called: Postgres allows 63 lower-case letters, digits and underscores, once a cluster."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from headwater.source.connect import SourceSettings
from headwater.source.slot import slot_name, temporary_slot_name

APP = SourceSettings("db", "app", "headwater")
LONG = replace(
    APP, database="Ein-sehr-langer-Name-für-eine-Datenbank" * 3, slot_prefix="und ein Präfix " * 9, tag="t" * 90
)


def test_slot_name() -> None:
    assert re.fullmatch("headwater_default_app_[0-9a-f]{8}", slot_name(APP))
    assert slot_name(APP) == slot_name(replace(APP, host="another", user="another"))


@pytest.mark.parametrize(
    "other",
    [
        replace(APP, database="app2"),
        replace(APP, database="App"),
        replace(APP, tag="defaul", database="t_app"),
        replace(APP, slot_prefix="headwater_d", tag="efault"),
    ],
    ids=["database", "capital letters", "tag", "prefix"],
)
def test_slot_names_differ(other: SourceSettings) -> None:
    assert slot_name(other) != slot_name(APP)


def test_slot_name_is_allowed() -> None:
    shorter = replace(LONG, database=LONG.database[:-1])
    names = [slot_name(LONG), slot_name(shorter)]
    temporary = [temporary_slot_name(name) for name in names]
    for name in [*names, *temporary]:
        assert re.fullmatch("[a-z0-9_]{1,63}", name)
    assert len({*names, *temporary}) == 4
