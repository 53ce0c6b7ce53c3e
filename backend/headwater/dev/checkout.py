"""Locates the demo's files, relative to the source code, not to the working directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import headwater
from headwater.errors import HeadwaterError


class NotACheckoutError(HeadwaterError):
    """The package was installed without the files of the demo."""

    code = "HW_8002"


@dataclass(frozen=True, slots=True)
class Checkout:
    """`rules` is the demo's sync config, `app` the built demo app, which may be missing."""

    rules: Path
    app: Path

    @property
    def has_app(self) -> bool:
        return (self.app / "index.html").is_file()


def find_checkout() -> Checkout:
    """The checkout. Raises NotACheckoutError."""
    root = Path(headwater.__file__).resolve().parents[2]
    checkout = Checkout(root / "sync_rules" / "examples" / "demo.yaml", root / "clients" / "web" / "dist")
    if not checkout.rules.is_file():
        raise NotACheckoutError(
            "the demo's files are missing", str(root), "run headwater dev from a clone of the repository"
        )
    return checkout
