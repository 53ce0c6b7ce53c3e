"""The table of faults in the docs, made from the catalogue."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.catalogue import EVERYWHERE, FAULTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operating.md"
_BEGIN = "<!-- Faults: written by `make faults ARGS=--write`. -->"
_END = "<!-- End of the faults. -->"


def table() -> str:
    """All faults, with what is said of each."""
    lines = ["| fault | is named as | with the remedy | by | rows |", "|---|---|---|---|---|"]
    for fault in FAULTS:
        where = "all three" if fault.where == EVERYWHERE else ", ".join(fault.where)
        cause, remedy = (words.replace(" / ", ", or: ") for words in (fault.cause, fault.remedy))
        lines.append(f"| {fault.name} | {cause} | {remedy} | {where} | {'flow' if fault.flows else 'wait'} |")
    return "\n".join(lines)


def in_page(text: str) -> str:
    """The page with the table as it has to be."""
    pattern = re.compile(f"{re.escape(_BEGIN)}.*{re.escape(_END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{_BEGIN}\n\n{table()}\n\n{_END}", text)
