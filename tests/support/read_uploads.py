"""What a config says of uploads, read for sources that the test has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwater.api.upload.settings import read_upload
from headwater.config.document import ConfigNode
from headwater.config.reader import ConfigFindings, Section
from headwater.source.connect import SourceSettings
from headwater.source.upload.settings import UploadSettings


def read_uploads(
    upload: dict[str, Any], sources: Sequence[SourceSettings], *, listed: bool = False
) -> tuple[UploadSettings | None, list[str]]:
    """The settings, None if there are errors; and the errors, or else the warnings."""
    findings = ConfigFindings()
    found = read_upload(Section({"upload": _node(upload)}, "", None, findings), sources, listed=listed)
    return None if findings.errors else found, [str(each) for each in findings.errors or findings.warnings]


def _node(value: Any) -> ConfigNode:
    match value:
        case dict():
            return ConfigNode({key: _node(each) for key, each in value.items()}, None)
        case list():
            return ConfigNode([_node(each) for each in value], None)
        case _:
            return ConfigNode(value, None)
