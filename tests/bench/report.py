"""How benchmarks print: one line a figure, with its yardstick and the ratio of both."""

from __future__ import annotations

from tests.bench.world import Usage


def heading(text: str) -> None:
    print(f"\n{text}", flush=True)


def line(
    name: str, value: float, unit: str, yardstick: str = "", other: float | None = None, *more: tuple[str, float]
) -> None:
    """`other` is the yardstick's value in the same unit; `more` are others with theirs."""
    text = f"  {name:<44} {_number(value):>12} {unit:<10}"
    for known, its in [(yardstick, other), *more]:
        if its is not None:
            text += f" {known}: {_number(its)} {unit}, ratio {value / its if its else 0:.2f};"
    print(text.rstrip(" ;"), flush=True)


def usage(measured: Usage, millions: float) -> None:
    """CPU seconds per million units, and peak memory."""
    line("  CPU seconds per million", measured.cpu / millions, "CPU-s")
    line("  peak memory, all processes", measured.peak / 1e6, "MB")


def percentile(samples: list[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
