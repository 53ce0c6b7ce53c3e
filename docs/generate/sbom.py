"""Prints a bill of materials (CycloneDX) of the wheel: the npm packages in its demo app, and what is installed with it.

`make sbom` writes it into dist/. It is made of the lock files and docs/licences.md alone, so that the same commit gives
the same bytes; its date is SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from docs.generate.licences import DEMO, ROOT, Use, node_packages, read_page, requirements


def sbom(version: str, date: datetime) -> str:
    """The bill of materials of that version of Headwater, as JSON."""
    root = _component("pypi", "headwater", version, "Apache-2.0", ComponentType.APPLICATION)
    bom = Bom(metadata=BomMetaData(component=root, timestamp=date), serial_number=uuid5(NAMESPACE_URL, str(root.purl)))
    licences = {package.name: package.licence for package in read_page() if package.use is not Use.TOOL}
    bundled = {name: entry for name, entry in node_packages(DEMO) if not entry.get("dev")}
    node = [_component("npm", name, entry["version"], licences[name]) for name, entry in bundled.items()]
    needs = requirements("headwater")
    lock = re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE)
    python = [_component("pypi", name, found, licences[name]) for name, found in lock if name in needs]
    bom.components.update(node, python)
    bom.register_dependency(root, [*node, *(each for each in python if each.name in needs["headwater"])])
    for each in python:
        bom.register_dependency(each, [other for other in python if other.name in needs[each.name]])
    _relate(bom, node, bundled)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _relate(bom: Bom, node: list[Component], entries: Mapping[str, Mapping[str, Mapping[str, str]]]) -> None:
    for each in node:
        asked = {name for key in ("dependencies", "peerDependencies") for name in entries[_name(each)].get(key, ())}
        bom.register_dependency(each, [other for other in node if _name(other) in asked])


def _component(
    kind: str, name: str, version: str, licence: str, type_: ComponentType = ComponentType.LIBRARY
) -> Component:
    group, _, short = name.rpartition("/")
    purl = PackageURL(kind, group or None, short, version)
    return Component(
        name=short,
        group=group or None,
        version=version,
        type=type_,
        purl=purl,
        bom_ref=str(purl),
        licenses=[LicenseExpression(licence)],
    )


def _name(component: Component) -> str:
    return f"{component.group}/{component.name}" if component.group else component.name


if __name__ == "__main__":
    moment = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    sys.stdout.write(sbom(sys.argv[1], moment))
