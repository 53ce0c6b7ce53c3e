"""Writes docs/errors.md: every code that an error, a warning or a finding can carry, what it means, and what to do.

`python -m docs.generate.errors` writes the page, from the tables in headwater.codes and headwater_rules.errors.
"""

from __future__ import annotations

from pathlib import Path

from headwater.codes import CODES, Kind
from headwater_rules.errors import RuleCode

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "errors.md"

_WHO = {
    Kind.RETRY: " *Headwater retries.*",
    Kind.STOP: "",
    Kind.RESYNC: " *Headwater compares with the source.*",
    Kind.REJECT: " *The sender acts.*",
}
_GROUPS = (
    ("HW_1", "The machine"),
    ("HW_2", "Source and stream"),
    ("HW_3", "Rows and their ids"),
    ("HW_4", "Store and embedded servers"),
    ("HW_5", "Bulk work and audit"),
    ("HW_6", "Endpoint"),
    ("HW_7", "Config and processes"),
    ("HW_8", "Commands and the demo"),
    ("HW_R", "Sync rules"),
    ("PSYNC_", "Codes that PowerSync publishes, with their meaning there"),
)
_HEAD = """# Error codes

<!-- Written by `make reference` from the code. -->

Every error carries one of these codes: in the log, in what a command prints, and in the answer to a device. Codes stay;
words may change. Where nothing else is said, you act. Link to a code as `errors.md#hw_2021`.
"""


def entries() -> dict[str, str]:
    """What is said of each code, in their order."""
    said = {code: f"{each.meaning} {each.remedy}{_WHO[each.kind]}" for code, each in CODES.items()}
    said = {code: text.replace(" Nothing. *", " *") for code, text in said.items()}
    said |= {code.value: code.meaning for code in RuleCode}
    return dict(sorted(said.items()))


def page() -> str:
    """The whole page. Raises ValueError for a code that no group is for."""
    every = entries()
    homeless = [code for code in every if not code.startswith(tuple(prefix for prefix, _ in _GROUPS))]
    if homeless:
        raise ValueError(f"no group is for these: {', '.join(homeless)}")
    parts = [_HEAD]
    for prefix, title in _GROUPS:
        parts.append(f"## {title}")
        parts += [f"### {code}\n\n{text}" for code, text in every.items() if code.startswith(prefix)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
