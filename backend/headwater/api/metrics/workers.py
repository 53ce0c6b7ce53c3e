"""The metrics of several processes of one endpoint on one page, with the label `worker`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from headwater.api.workers import Workers

METRICS = "metrics"
"""What the processes are asked for."""


@dataclass(frozen=True, eq=False)
class WorkersCollector(Collector):
    """Asks all processes for their metrics."""

    workers: Workers

    def describe(self) -> list[Metric]:
        """Return nothing: registration would ask all processes."""
        return []

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for number, told in self.workers.ask(METRICS):
            for found in text_string_to_metric_families(told.decode()):
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                family.samples += [_labelled(sample, number) for sample in found.samples]
        yield from families.values()


def _labelled(sample: Sample, number: int) -> Sample:
    return Sample(sample.name, {**sample.labels, "worker": str(number)}, sample.value)
