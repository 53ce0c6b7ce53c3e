"""What docker/ has would work: the image's Dockerfile, the compose files, the manifests. No engine runs here, so their
form is held against their specifications, and what they run and mount against the code."""

from __future__ import annotations

import fnmatch
import json
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
from compose_spec import PyCompose
from ruamel.yaml import YAML

from headwater.cli.config import ServiceConfig, load_config
from headwater.cli.main import cli
from headwater.config import ConfigSource
from headwater_rules.compiler.compile import compile_config

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
COMPOSE = sorted(path.name for path in DOCKER.glob("compose*.yaml"))
KUBERNETES = DOCKER / "kubernetes"
WRITTEN = {"./your-postgres/headwater.yaml", "./your-postgres/sync.yaml"}  # by `headwater init`


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(DOCKER / name)
    return found


def variables(path: Path) -> dict[str, str]:
    """What a file of variables has."""
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if line and not line.startswith("#"))


def filled(path: Path) -> dict[str, str]:
    """A file of variables with a secret of its own for each, as the document makes them."""
    return {name: value or secrets.token_hex(32) for name, value in variables(path).items()}


def ours(name: str) -> list[tuple[str, dict[str, Any]]]:
    """The services of a compose file that run our image as it is."""
    services = read(name)["services"].items()
    return [(each, service) for each, service in services if service["image"] == "headwater"]


def parsed(arguments: list[str]) -> click.Command:
    """The command that arguments call, all of which it takes. Raises UsageError."""
    command: click.Command = cli
    context: click.Context | None = None
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context)
        name, found, arguments = command.resolve_command(context, list(arguments))
        assert found is not None, name
        command = found
    command.make_context("headwater", list(arguments), parent=context)
    return command


def checked_config(path: Path, environment: Mapping[str, str], directory: Path) -> ServiceConfig:
    """A service config that nothing is wrong with, and whose sync config nothing is wrong with."""
    config = load_config(ConfigSource(path=path), environment, directory)
    assert config.warnings == ()
    assert config.api.workers, "a container is not as many cores as its machine"
    assert config.storage.one_machine is ("single" in str(path))
    compiled = compile_config(config.sync_text())
    assert compiled.warnings == ()
    return config


# the image


def test_dockerfile_lint() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([hadolint, DOCKER / "Dockerfile"], capture_output=True, text=True, check=False, timeout=60)
    assert (found.returncode, found.stdout) == (0, "")


def test_copied_files() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    copied = [
        each for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE) for each in line.split()
    ]
    assert len(copied) > 8
    for each in copied:
        assert (ROOT / each).exists(), each
        sent = False
        for rule in rules:
            pattern = rule.removeprefix("!")
            if fnmatch.fnmatch(each, pattern) or each.startswith(f"{pattern}/"):
                sent = rule.startswith("!")
        assert sent, each


def test_stages_end_unprivileged() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    for name in ("base", "service"):
        (stage,) = (each for each in stages if re.match(rf"\S+ AS {name}\n", each))
        assert re.findall(r"^USER (.*)$", stage, re.MULTILINE)[-1] == "10001:10001"


@pytest.mark.parametrize(("status", "code"), [(200, 0), (400, 1)])
def test_health_check(status: int, code: int) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/probes/liveness" else 500)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/probes/liveness"
        assert healthy(url) == code
        server.shutdown()
    assert healthy(url) == 1


def healthy(url: str) -> int:
    command = [sys.executable, "-I", str(DOCKER / "healthy.py")]
    return subprocess.run(command, env={"HEADWATER_HEALTH_URL": url}, stderr=subprocess.DEVNULL, check=False).returncode


# compose


def compose_errors(text: str) -> str:
    """What is wrong with a compose file by its specification."""
    resolved = json.dumps(YAML(typ="safe").load(text))  # the library resolves no merge within a merge
    resolved = resolved.replace(":host-gateway", ":127.0.0.1")  # and knows no name for the engine's own address
    try:
        PyCompose.from_json(resolved).validate()
    except (ValueError, TypeError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_files(name: str) -> None:
    text = (DOCKER / name).read_text()
    assert compose_errors(text) == ""
    assert compose_errors(text.replace("    command:", "    commands:", 1)) != ""
    wanted = read(name)
    named = {each for service in wanted["services"].values() for each in service.get("depends_on", ())}
    assert named <= wanted["services"].keys()
    mounts = [each.split(":") for service in wanted["services"].values() for each in service.get("volumes", ())]
    folders = {source for source, *_ in mounts if source.startswith(".")} - WRITTEN
    assert [each for each in folders if not (DOCKER / each).exists()] == []
    assert {source for source, *_ in mounts if not source.startswith(".")} == wanted["volumes"].keys()


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_variables(name: str) -> None:
    named = set(re.findall(r"\$\{(\w+)", (DOCKER / name).read_text()))
    assert named - {"HEADWATER_VERSION"} <= variables(DOCKER / "env.example").keys()


@pytest.mark.parametrize("name", ["env.example", "kubernetes/secrets.env.example"])
def test_example_secrets(name: str) -> None:
    assert set(variables(DOCKER / name).values()) == {""}


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_needs_secrets(name: str) -> None:
    text = (DOCKER / name).read_text().replace("${HEADWATER_VERSION:-}", "")
    assert len(re.findall(r"\$\{", text)) == len(re.findall(r"\$\{\w+:\?", text))


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_ports(name: str) -> None:
    published = [each for service in read(name)["services"].values() for each in service.get("ports", ())]
    open_to_all = [each for each in published if not each.startswith("127.0.0.1:")]
    assert open_to_all
    assert all(re.fullmatch(r"808[01]:8080", each) for each in open_to_all)
    assert any(re.fullmatch(r"127\.0\.0\.1:\d+:8081", each) for each in published), "the admin API"


@pytest.mark.parametrize(
    ("name", "service"), [pytest.param(name, each, id=f"{name}-{each}") for name in COMPOSE for each, _ in ours(name)]
)
def test_compose_commands(name: str, service: str) -> None:
    wanted = dict(ours(name))[service]
    assert (wanted["read_only"], wanted["cap_drop"]) == (True, ["ALL"])
    if "entrypoint" in wanted:
        assert wanted["entrypoint"][:2] == ["tini", "--"]
        return
    parsed(wanted["command"])
    mounts = dict(reversed(each.split(":")[:2]) for each in wanted["volumes"])
    source = mounts["/etc/headwater/headwater.yaml"]
    if source in WRITTEN:
        return
    environment = wanted["environment"] | filled(DOCKER / "env.example")
    config = checked_config(DOCKER / source, {name: environment[name] for name in wanted["environment"]}, DOCKER)
    assert mounts["/etc/headwater/sync.yaml"] == source.replace("headwater.yaml", "sync.yaml")
    assert config.source().host in read(name)["services"]
    ports = {published.rpartition(":")[2] for published in wanted.get("ports", ())}
    assert ports in (set(), {str(config.port), str(config.api.admin_port)})
    health = wanted["environment"].get("HEADWATER_HEALTH_URL", "")
    assert health in {"", f"http://127.0.0.1:{config.prometheus_port}/metrics"}


def test_spark_is_where_the_image_has_it() -> None:
    python = re.findall(r"^ARG PYTHON=(.*)$", DOCKERFILE, re.MULTILINE)[0]
    home = re.findall(r"SPARK_HOME=(\S+)", DOCKERFILE)[0].replace("${PYTHON}", python)
    services = read("compose.scaled.yaml")["services"]
    assert services["spark-worker"]["deploy"]["replicas"] == 2
    for each in ("spark-master", "spark-worker"):
        assert services[each]["entrypoint"][2] == f"{home}/bin/spark-class"
    master = services["spark-master"]["command"]
    config = checked_config(DOCKER / "scaled/headwater.yaml", filled(DOCKER / "env.example"), DOCKER)
    address = f"spark://{master[master.index('--host') + 1]}:{master[master.index('--port') + 1]}"
    assert services["spark-worker"]["command"][-1] == config.spark.master == address


def test_prometheus_targets() -> None:
    (job,) = read("prometheus/prometheus.yaml")["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    config = load_config(ConfigSource(path=DOCKER / "scaled/headwater.yaml"), filled(DOCKER / "env.example"), DOCKER)
    assert (found["port"], config.metrics_host) == (config.prometheus_port, "0.0.0.0")
    running = {
        name for name, service in ours("compose.scaled.yaml") if service.get("command") in (["replicate"], ["api"])
    }
    assert set(found["names"]) == running == {"replicator", "standby", "endpoint-1", "endpoint-2"}


# Kubernetes


def manifests() -> Iterator[dict[str, Any]]:
    for name in read("kubernetes/kustomization.yaml")["resources"]:
        yield from YAML(typ="safe").load_all(KUBERNETES / name)


def test_manifests() -> None:
    for manifest in manifests():
        kubernetes_validate.validate(manifest, "1.33", strict=True)


def test_pod_commands() -> None:
    generated = read("kubernetes/kustomization.yaml")
    assert generated["configMapGenerator"] == [{"name": "headwater", "files": ["headwater.yaml", "sync.yaml"]}]
    assert generated["secretGenerator"] == [{"name": "headwater", "envs": ["secrets.env"]}]
    config = checked_config(KUBERNETES / "headwater.yaml", filled(KUBERNETES / "secrets.env.example"), KUBERNETES)
    deployments = [each for each in manifests() if each["kind"] == "Deployment"]
    commands = set()
    for each in deployments:
        pod = each["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        commands.add(parsed(container["args"]).name)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        known = {"http": config.port, "admin": config.api.admin_port, "metrics": config.prometheus_port}
        assert ports.items() <= known.items()
        for kind in ("startupProbe", "livenessProbe"):
            asked = container[kind]["httpGet"]
            assert asked["port"] in ports
            assert asked["path"] == "/metrics" or asked["path"].startswith("/probes/")
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
    assert commands == {"api", "replicate"}


def test_pod_ports() -> None:
    config = checked_config(KUBERNETES / "headwater.yaml", filled(KUBERNETES / "secrets.env.example"), KUBERNETES)
    policies = [each["spec"] for each in manifests() if each["kind"] == "NetworkPolicy"]
    allowed = {
        port["port"]: (policy["podSelector"], rule.get("from"))
        for policy in policies
        for rule in policy.get("ingress", ())
        for port in rule["ports"]
    }
    endpoint = {"matchLabels": {"app.kubernetes.io/name": "endpoint"}}
    own: dict[str, Any] = {"podSelector": {}}
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert allowed == {
        config.port: (endpoint, None),
        config.api.admin_port: (endpoint, [own]),
        config.prometheus_port: ({}, [own, monitoring]),
    }
    (outward,) = (policy for policy in policies if policy["policyTypes"] == ["Egress"])
    assert outward["podSelector"] == {}
    assert {port["port"] for rule in outward["egress"] for port in rule["ports"]} == {53, 5432, 443}
    assert config.source().port == 5432


def test_device_service_ports() -> None:
    (service,) = (each["spec"] for each in manifests() if each["kind"] == "Service")
    assert [port["targetPort"] for port in service["ports"]] == ["http"]


def test_database_health() -> None:
    """While its image makes it, the server answers on its socket only."""
    checks = [
        service["healthcheck"]["test"]
        for name in COMPOSE
        for service in read(name)["services"].values()
        if "pg_isready" in str(service.get("healthcheck"))
    ]
    assert len(checks) >= 3
    assert all("--host" in check for check in checks)


def test_compose_files_share_no_volume() -> None:
    assert len({read(name)["name"] for name in COMPOSE}) == len(COMPOSE)
