"""Spark's part of the config. In a module of its own, so that reading the config does not import pyspark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """`master` is Spark's address; `conf` are further settings of Spark, which override our defaults. A Spark on this
    machine that had nothing to do for `idle_minutes` is ended; 0 keeps it. With `queries`, sync configs may have
    computed tables whose query it runs: whoever deploys them can do with it what it can."""

    master: Annotated[str, Meta()] = "local[*]"
    conf: Annotated[Mapping[str, str], Meta()] = field(default_factory=dict)
    idle_minutes: Annotated[float, Meta(ge=0)] = 10
    queries: Annotated[bool, Meta()] = False

    @property
    def local(self) -> bool:
        """Whether tasks run on this machine."""
        return self.master.startswith("local")

    @property
    def idle_seconds(self) -> float | None:
        """After how many idle seconds Spark is ended; None for never. Executors of a cluster are the cluster's to end,
        by `spark.dynamicAllocation`."""
        return self.idle_minutes * 60 if self.local and self.idle_minutes else None
