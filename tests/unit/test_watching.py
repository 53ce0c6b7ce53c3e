"""The dashboard and the alert rules speak of metrics that there are, and have the form that is asked of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
from prometheus_client.process_collector import ProcessCollector
from ruamel.yaml import YAML

from headwater.api.metrics import ENDS
from headwater.replication.status import ReplicationState
from tests.support.every_metric import samples

DOCKER = Path(__file__).parents[2] / "docker"
DASHBOARD: dict[str, Any] = json.loads((DOCKER / "grafana" / "headwater.json").read_text(encoding="utf-8"))
ALERTS: dict[str, Any] = YAML(typ="safe").load(DOCKER / "prometheus" / "alerts.yaml")
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]

ADDED = {"instance", "job", "worker"}
"""Labels that Prometheus adds to all it reads, and that an endpoint of several processes adds."""


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", target["expr"].replace("$__rate_interval", "5m")


def selectors(expression: str) -> list[promql.VectorSelector]:
    """All selectors of metrics within an expression. Raises ValueError when it is none."""
    found: list[promql.VectorSelector] = []

    def visit(each: promql.Expr) -> None:
        if isinstance(each, promql.MatrixSelector):
            found.append(each.vector_selector)
        elif isinstance(each, promql.VectorSelector):
            found.append(each)

    promql.walk(promql.parse(expression), visit)
    return found


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """The names of labels by those of metrics."""
    ours = samples()
    process = [sample for family in ProcessCollector(registry=None).collect() for sample in family.samples]
    return ours | {sample.name: set(sample.labels) for sample in process}


@pytest.mark.parametrize(("title", "expression"), list(expressions()), ids=lambda text: text if len(text) < 60 else "")
def test_expressions_name_known_metrics(title: str, expression: str, exported: dict[str, set[str]]) -> None:
    found = selectors(expression)
    names = set(re.findall(r"\b(?:headwater|powersync|process)_\w+", expression))
    assert {each.name for each in found} == names, "each is found by the parser, too"
    for each in found:
        labels = exported.get(str(each.name))
        assert labels is not None, f"{title}: there is no metric {each.name}"
        for matcher in each.matchers.matchers:
            assert matcher.name in labels | ADDED, f"{title}: {each.name} has no label {matcher.name}"
            known = {"state": [state.value for state in ReplicationState], "reason": ENDS}.get(matcher.name)
            if known is not None:
                assert set(matcher.value.split("|")) <= set(known), f"{title}: {matcher.value}"
    by = {label.strip() for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for label in labels.split(",")}
    assert by <= set().union(*(exported[str(each.name)] for each in found), ADDED), title


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_form(rule: dict[str, Any]) -> None:
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Headwater[A-Za-z]+", rule["alert"])
    assert rule["labels"]["severity"] in {"page", "warn"}
    assert rule["annotations"].keys() == {"summary", "description"}
    if "for" in rule:
        assert promql.parse_duration(rule["for"]).total_seconds() >= 60
    for text in rule["annotations"].values():
        used = re.findall(r"\{\{ (.*?) \}\}", text)
        assert text.count("{{") == len(used)
        assert all(re.fullmatch(r"\$value(?: \| humanize(?:Duration|1024)?)?|\$labels\.\w+", each) for each in used)


def test_alert_groups() -> None:
    assert ALERTS.keys() == {"groups"}
    assert all(group.keys() == {"name", "rules"} for group in ALERTS["groups"])
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    operating = (DOCKER.parent / "docs" / "operating.md").read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}`" not in operating] == []


def test_dashboard_source() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    used = [panel for panel in PANELS if panel["type"] != "row"]
    used += [target for panel in PANELS for target in panel.get("targets", ())]
    used += [each for each in variables.values() if each["type"] == "query"]
    assert all(each["datasource"] == {"type": "prometheus", "uid": "${datasource}"} for each in used)
    written = json.dumps(PANELS)
    assert set(re.findall(r"\$(?!__)(\w+)", written)) <= variables.keys()


def test_panels_stand_beside_each_other() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    places = [panel["gridPos"] for panel in PANELS]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_dashboard_metrics(exported: dict[str, set[str]]) -> None:
    shown = " ".join(expression for _, expression in expressions())
    ours = {name for name in exported if not name.startswith("process_")}
    left_out = {name for name in ours if not re.search(rf"\b{name}\b", shown)}
    assert left_out == {"headwater_commit_to_line_seconds_sum", "headwater_commit_to_line_seconds_count"}
