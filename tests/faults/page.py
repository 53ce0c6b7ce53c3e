"""The table of faults in the docs, made from the catalogue."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.catalogue import EVERYWHERE, FAULTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operating.md"
_BEGIN = "<!-- Faults: written by `make faults ARGS=--write`. -->"
_END = "<!-- End of the faults. -->"


def table() -> str:
    """All faults, with what names each where that is not all three."""
    lines = ["| fault | named by | rows |", "|---|---|---|"]
    for fault in FAULTS:
        where = "" if fault.where == EVERYWHERE else ", ".join(fault.where)
        lines.append(f"| {fault.name} | {where} | {'flow' if fault.flows else 'wait'} |")
    return "\n".join(lines)


def in_page(text: str) -> str:
    """The page with the table as it has to be."""
    pattern = re.compile(f"{re.escape(_BEGIN)}.*{re.escape(_END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{_BEGIN}\n\n{table()}\n\n{_END}", text)
