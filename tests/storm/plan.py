"""How rough a life gets."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Plan:
    """Of each round and each of the services: how many writers and transactions each, changes of tables, kills, and
    transactions with large rows. `apart` is the share of starts as a process of its own, `many` how many rows the
    table with many rows has, `storage` is sqlite or postgres, and
    `devices` is how many of the Python client follow each service, in a process of their own. `sources` is how many
    each service has, and `away` for how many seconds one of several is away at a time."""

    writers: int = 2
    transactions: int = 60
    changes: int = 0
    kills: int = 0
    apart: float = 0.0
    heavy: int = 0
    many: int = 0
    services: int = 1
    storage: str = "sqlite"
    devices: int = 0
    sources: int = 1
    away: float = 0.0


ROUGH = Plan(writers=3, transactions=80, changes=3, kills=2, apart=0.25)


def varied(plan: Plan, seed: int, storage: str = "") -> Plan:
    """What a life of this seed has beside that; one that is named has this storage."""
    chance = random.Random(f"{seed} plan")
    drawn = chance.choice(["sqlite", "postgres"])
    made = replace(
        plan,
        heavy=chance.choice([0, 30]) if plan.devices == 0 else 0,  # each would have 90 MB of them
        many=chance.choice([0, 20_000]),
        services=chance.choice([1, 1, 2]),
        storage=storage or drawn,
    )
    return replace(made, many=made.many // plan.sources, services=1) if plan.sources > 1 else made
