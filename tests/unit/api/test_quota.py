"""A quota refuses what goes beyond its limits, in all and by key."""

from __future__ import annotations

import pytest

from headwater.api.errors import TooManyRequestsError
from headwater.api.quota import user_quota


def test_a_limit_of_zero_refuses_all_and_none_refuses_nothing() -> None:
    user_quota("streams", 1).take("ann")
    for per_user, total in ((0, None), (1, 0)):
        with pytest.raises(TooManyRequestsError):
            user_quota("streams", per_user, total).take("ann")


def test_what_is_released_can_be_taken_again() -> None:
    quota = user_quota("streams", per_user=1, total=2)
    for _ in range(3):
        quota.take("ann")
        quota.take("bob")
        for full in ("ann", "eve"):
            with pytest.raises(TooManyRequestsError):
                quota.take(full)
        quota.release("ann")
        quota.release("bob")
    assert quota.used == 0
