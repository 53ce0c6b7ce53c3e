"""Adds to a wheel what `headwater dev` shows: the built demo app and its sync config. A clone has them in its tree."""

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
        wheel = {_APP: "headwater/dev/app", _RULES: "headwater/dev/demo.yaml"}
        build_data["force_include"].update(wheel if self.target_name == "wheel" else {_APP: _APP})
