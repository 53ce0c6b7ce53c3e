"""How benchmarks print: one line a figure, with its yardstick and the ratio of both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.bench.service import Usage


@dataclass(slots=True)
class Table:
    """The figures under one heading."""

    heading: str
    lines: list[str]


_tables: list[Table] = []


def heading(text: str) -> None:
    print(f"\n{text}", flush=True)
    _tables.append(Table(text, []))


def line(
    name: str, value: float, unit: str, yardstick: str = "", other: float | None = None, *more: tuple[str, float]
) -> None:
    """`other` is the yardstick's value in the same unit; `more` are others with theirs."""
    beside = [
        f"{known}: {_number(its)} {unit}, ratio {value / its if its else 0:.2f}"
        for known, its in [(yardstick, other), *more]
        if its is not None
    ]
    print(f"  {name:<44} {_number(value):>12} {unit:<10} {'; '.join(beside)}".rstrip(), flush=True)
    if _tables:
        _tables[-1].lines.append(f"| {name.strip()} | {_number(value)} {unit} | {'; '.join(beside)} |")


def write_markdown(file: Path, title: str) -> None:
    """Write all figures so far as tables."""
    text = [f"# {title}"]
    for table in _tables:
        text += ["", f"## {table.heading}", "", "| | | beside |", "|---|---|---|", *table.lines]
    file.write_text("\n".join(text) + "\n", encoding="utf-8")


def usage(measured: Usage, millions: float) -> None:
    """CPU seconds per million units, and peak memory."""
    line("  CPU seconds per million", measured.cpu / millions, "CPU-s")
    line("  peak memory, all processes", measured.peak / 1e6, "MB")


def percentile(samples: list[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def percentiles(taken: list[float], yardstick: str, others: list[float], indent: str = "") -> None:
    """Of seconds, in milliseconds."""
    for share, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99")):
        its = percentile(others, share) * 1000
        line(indent + name, percentile(taken, share) * 1000, "ms", yardstick, its)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
