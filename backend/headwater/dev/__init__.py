"""`headwater dev`: everything on this machine, with its own Postgres, sample data and the demo app.

This module finds the demo's files: in the tree of a clone, or beside it in an installed wheel.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headwater.errors import HeadwaterError


@dataclass(frozen=True, slots=True)
class DemoFiles:
    """`rules` is the sync config, `app` the built demo app, which may be missing in a clone, and `page` its page."""

    rules: Path
    app: Path
    page: str = "index.html"

    @property
    def has_app(self) -> bool:
        return (self.app / self.page).is_file()


def find_demo_files() -> DemoFiles:
    """The files. Raises HW_8002."""
    here = Path(__file__).resolve().parent
    root = here.parents[2]
    for files in (
        DemoFiles(root / "sync_rules" / "examples" / "demo.yaml", root / "clients" / "web" / "dist"),
        DemoFiles(here / "demo.yaml", here / "app"),
    ):
        if files.rules.is_file():
            return files
    fix = "run headwater dev from a clone, or from a wheel that `make dist` built"
    raise HeadwaterError("the demo's files are missing", str(here), fix, code="HW_8002")
