"""What a config says of Spark. Apart from the session, so that reading a config does not load Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """`master` is Spark's address; `conf` are further settings of it, which win over our defaults."""

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def local(self) -> bool:
        """Whether every task runs on this machine."""
        return self.master.startswith("local")
