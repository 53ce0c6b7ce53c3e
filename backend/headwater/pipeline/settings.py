"""Spark's part of the config. In a module of its own, so that reading the config does not import pyspark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """`master` is Spark's address; `conf` are further settings of Spark, which override our defaults."""

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def local(self) -> bool:
        """Whether tasks run on this machine."""
        return self.master.startswith("local")
