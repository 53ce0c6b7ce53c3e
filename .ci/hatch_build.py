"""Adds to a wheel what `headwater dev` shows, the built demo app and its sync config, and the docs that `headwater mcp`
searches. A clone has them in its tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_APP, _RULES = "clients/web/dist", "sync_rules/examples/demo.yaml"


class DemoFilesHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling for each build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        if not Path(self.root, _APP, "index.html").is_file():
            raise FileNotFoundError(f"{_APP} is not built: run `make dist`, which builds it first")
        pages = [str(page.relative_to(self.root)) for page in Path(self.root, "docs").glob("*.md")]
        wheel = {_APP: "headwater/dev/app", _RULES: "headwater/dev/demo.yaml"}
        wheel |= {page: f"headwater/{page}" for page in pages}
        sdist = {each: each for each in (_APP, *pages)}
        build_data["force_include"].update(wheel if self.target_name == "wheel" else sdist)
