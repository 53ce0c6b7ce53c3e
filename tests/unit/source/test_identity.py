"""What tells the rows of a partitioned table apart, given what its partitions have."""

from __future__ import annotations

import pytest

from headwater.oplog.change import ReplicaIdentity
from headwater.source.catalog.read import NO_IDENTITY, Identity, common_identity

FULL = Identity(ReplicaIdentity.FULL, frozenset())


def by_key(*names: str) -> Identity:
    return Identity(ReplicaIdentity.DEFAULT, frozenset(names))


def by_index(*names: str) -> Identity:
    return Identity(ReplicaIdentity.INDEX, frozenset(names))


KEYLESS = by_key()
ID = by_key("id")


@pytest.mark.parametrize(
    ("own", "primary", "leaves", "found"),
    [
        (ID, "id", [], ID),
        (ID, "id", [ID], ID),
        (ID, "id", [ID, FULL], ID),
        (ID, "id", [FULL], ID),  # whole old rows hold the key
        (ID, "id", [ID, NO_IDENTITY], ID),
        (ID, "id", [by_index("id", "day")], ID),
        (ID, "id", [by_index("day")], None),
        (ID, "id", [NO_IDENTITY], NO_IDENTITY),
        (FULL, "id", [FULL], FULL),
        (FULL, "id", [ID], ID),
        (FULL, "id", [ID, FULL], ID),
        (FULL, "", [ID, FULL], None),  # each has a key, and two of them the same
        (FULL, "", [NO_IDENTITY], NO_IDENTITY),
        (FULL, "", [NO_IDENTITY, FULL], FULL),
        (NO_IDENTITY, "id", [ID], ID),
        (NO_IDENTITY, "", [FULL], FULL),
        (NO_IDENTITY, "", [NO_IDENTITY], NO_IDENTITY),
        (KEYLESS, "", [NO_IDENTITY], KEYLESS),
        (KEYLESS, "", [FULL], FULL),
        (by_index("day"), "id", [ID], None),
        (by_index("day"), "id", [by_index("day"), FULL], by_index("day")),
    ],
)
def test_common_identity(own: Identity, primary: str, leaves: list[Identity], found: Identity | None) -> None:
    assert common_identity(own, frozenset({primary} - {""}), leaves) == found
