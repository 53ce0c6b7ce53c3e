"""The service config: the published shape loads as it is, with every default filled in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from headwater.api.limits import HttpLimits
from headwater.cli.databases import source_of
from headwater.config.document import ConfigError
from headwater.storage.address import PostgresAddress, SqliteAddress
from headwater.telemetry.trace_choice import TraceSettings
from tests.unit.config.configs import MINIMAL, load, mistakes


def test_published_config(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL)
    source = config.source()
    assert (source.host, source.port, source.database, source.user) == ("db.example", 5433, "shop", "app")
    assert source.password == "pass"
    assert source.publications == ("headwater",)
    assert config.storage == SqliteAddress(str(tmp_path / "data"))
    assert config.auth.audience == {"app"}
    assert [key.kid for key in config.auth.keys] == ["k"]
    assert config.port == 8080
    assert config.warnings == ()


def test_http_limits(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).api.http == HttpLimits()
    written = "http: {max_header_bytes: 8192, body_seconds: 5, max_connections_per_address: 0, drain_seconds: 0}"
    limits = load(tmp_path, f"{MINIMAL}api: {{{written}, trusted_proxies: [10.1.2.3/8, '::1']}}").api.http
    assert (limits.max_header_bytes, limits.body_seconds, limits.header_seconds) == (8192, 5, 10)
    assert (limits.max_connections_per_address, limits.drain_seconds) == (0, 0)
    assert [str(network) for network in limits.trusted_proxies] == ["10.0.0.0/8", "::1/128"]
    many = load(tmp_path, MINIMAL + "api: {parameters: {max_concurrent_connections: 8000}}").api.http
    assert (many.max_connections, many.max_connections_per_address) == (16_000, 16_000)
    assert "api.trusted_proxies" in mistakes(tmp_path, MINIMAL + "api: {trusted_proxies: [proxy.internal]}")
    assert "api.http.drain_seconds" in mistakes(tmp_path, MINIMAL + "api: {http: {drain_seconds: 30}}")


def test_known_buckets(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).api.parameters.body.known_buckets == 20_000
    raised = MINIMAL + "api: {parameters: {max_buckets_per_connection: 50000, max_subscriptions_per_connection: 5}}"
    assert load(tmp_path, raised).api.parameters.body.known_buckets == 100_000
    assert load(tmp_path, raised).api.parameters.body.subscriptions == 5


def test_postgres_store(tmp_path: Path) -> None:
    text = """
    storage: {type: postgresql, uri: "postgresql://app:p%40ss@db.example:6001/ours", sslmode: verify-ca, cacert: CA}
    """
    config = load(tmp_path, text)
    assert isinstance(config.storage, PostgresAddress)
    assert str(config.storage) == "db.example:6001/ours, schema headwater"
    assert conninfo_to_dict(config.storage.conninfo) == {
        "host": "db.example", "port": "6001", "dbname": "ours", "user": "app", "password": "p@ss",
        "sslmode": "verify-ca", "connect_timeout": "20",
    }  # fmt: skip
    assert config.storage.pem == (("sslrootcert", "CA"),)
    assert "p@ss" not in repr(config)
    assert not any("storage" in warning for warning in config.warnings)


@pytest.mark.parametrize(
    ("keys", "warnings"),
    [
        (
            "sslmode: require",
            ["storage.sslmode: require encrypts, but anybody who gets between can"],
        ),
        ("sslmode: require, cacert: PEM", []),
        (
            "sslmode: verify-ca",
            ["storage.sslmode: verify-ca without cacert is content with any host"],
        ),
        ("sslmode: verify-ca, cacert: PEM", []),
        ("sslmode: verify-full", []),
        ("port: 5432", []),
        ("sslmode: disable", []),
    ],
)
def test_sslmode_warnings(tmp_path: Path, keys: str, warnings: list[str]) -> None:
    storage = f"storage:\n  {{{keys}, type: postgresql, uri: 'postgresql://u:p@h/d'}}"
    found = load(tmp_path, re.sub("storage: .*", storage, MINIMAL)).warnings
    assert all(expected in message for message, expected in zip(found, warnings, strict=True)), found


def test_spark_elsewhere(tmp_path: Path) -> None:
    storage = "storage: {type: postgresql, hostname: h, database: d, username: u, sslmode: disable, schema: hw_2}"
    config = load(tmp_path, f"{storage}\nspark: {{master: yarn}}")
    assert config.spark.master == "yarn"
    assert str(config.storage) == "h:5432/d, schema hw_2"
    assert config.spark.idle_seconds is None, "what a cluster gives to whom is its own affair"


@pytest.mark.parametrize(("minutes", "seconds"), [("", 600), ("idle_minutes: 1", 60), ("idle_minutes: 0", None)])
def test_idle_spark(tmp_path: Path, minutes: str, seconds: float | None) -> None:
    assert load(tmp_path, f"spark: {{{minutes}}}").spark.idle_seconds == seconds


def test_keys_beside_the_uri(tmp_path: Path) -> None:
    text = """
    replication: {connections: [{uri: "postgres://a:b@one:6000/x?connect_timeout=7&sslmode=disable", hostname: two,
                                 port: "6001", password: c, publications: [powersync], slot_name_prefix: hw_}]}
    """
    config = load(tmp_path, text)
    source = config.source()
    assert (source.host, source.port, source.user, source.password) == ("two", 6001, "a", "c")
    assert source.connect_timeout == 7
    assert source.sslmode == "verify-full"  # never taken from the URI
    assert any(
        "replication.connections[0].uri: its parameters sslmode are not read" in each for each in config.warnings
    )
    assert (source.publications, source.slot_prefix) == (("powersync",), "hw_")


def test_escaped_uri(tmp_path: Path) -> None:
    text = "replication: {connections: [{uri: 'postgresql://us%40er:p%2Fw%23@db/na%20me'}]}"
    source = load(tmp_path, text).source()
    assert (source.user, source.password, source.database) == ("us@er", "p/w#", "na me")


def test_chunk_cache_mb(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).api.parameters.chunk_cache_mb == 64
    assert load(tmp_path, MINIMAL + "api: {parameters: {chunk_cache_mb: 0}}").api.parameters.chunk_cache_mb == 0
    assert "api.parameters.chunk_cache_mb" in mistakes(tmp_path, MINIMAL + "api: {parameters: {chunk_cache_mb: -1}}")


def test_admin_port(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).api.admin_port is None
    api = load(tmp_path, MINIMAL + "api: {admin_port: 9000, admin_host: 127.0.0.1}").api
    assert (api.admin_port, api.admin_host) == (9000, "127.0.0.1")
    said = mistakes(tmp_path, MINIMAL + "port: 9000\napi: {admin_port: 9000}")
    assert "api.admin_port: is the same as `port`" in said


def test_batch_mb(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).source().memory_bytes == 64 << 20
    told = MINIMAL.replace("replication:\n", "replication:\n  batch_mb: 16\n")
    assert load(tmp_path, told).source().memory_bytes == 16 << 20


def test_keys_without_effect(tmp_path: Path) -> None:
    text = """
    migrations: {disable_auto_migration: false}
    telemetry: {disable_telemetry_sharing: true, prometheus_port: 9090}
    healthcheck: {probes: {use_http: true, use_filesystem: false}}
    """
    config = load(tmp_path, MINIMAL + "\n".join(line.strip() for line in text.splitlines()))
    assert config.warnings == ()
    assert config.prometheus_port == 9090


def test_metrics_host(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).metrics_host == "127.0.0.1"
    assert load(tmp_path, MINIMAL + "metrics: {host: 0.0.0.0}").metrics_host == "0.0.0.0"
    assert any("metrics.port: unknown key" in w for w in load(tmp_path, MINIMAL + "metrics: {port: 1}").warnings)


ENDPOINT = "http://collector:4318"


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("", {}, None),
        ("traces: {per_minute: 5}", {}, None),
        ("traces: {endpoint: 'http://collector:4318'}", {}, TraceSettings(ENDPOINT, 60)),
        ("traces: {endpoint: 'http://collector:4318'}", {"OTEL_SDK_DISABLED": "true"}, None),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT}, TraceSettings(None, 60)),
        ("traces: {per_minute: 5}", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": ENDPOINT}, TraceSettings(None, 5)),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, None),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, None),
    ],
)
def test_traces(tmp_path: Path, text: str, environment: dict[str, str], expected: TraceSettings | None) -> None:
    config = load(tmp_path, MINIMAL + text, **environment)
    assert config.traces == expected
    assert config.warnings == ()


def test_traces_need_http(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not an HTTP URL"):
        load(tmp_path, MINIMAL + "traces: {endpoint: 'collector:4317'}")
    grpc = {"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    (warning,) = load(tmp_path, MINIMAL, **grpc).warnings
    assert "http/protobuf" in warning


@pytest.mark.parametrize(
    ("healthcheck", "answered"),
    [
        ("{}", True),
        ("{probes: {}}", False),
        ("{probes: {use_http: false}}", False),
        ("{probes: {use_filesystem: true}}", False),
        ("{probes: {use_http: true}}", True),
        ("{probes: {use_legacy: true}}", True),
    ],
)
def test_probes(tmp_path: Path, healthcheck: str, answered: bool) -> None:
    assert load(tmp_path, f"{MINIMAL}healthcheck: {healthcheck}").probes is answered


def test_logging_of_the_environment(tmp_path: Path) -> None:
    text = "system: {logging: {level: warn}}"
    assert load(tmp_path, text).logging.level == "WARNING"
    logging = load(tmp_path, text, PS_LOG_LEVEL="DEBUG", PS_LOG_FORMAT="json").logging
    assert (logging.level, logging.format) == ("DEBUG", "json")
    assert load(tmp_path, text, NODE_ENV="production").logging.format == "json"


@pytest.mark.parametrize("end", ["\n", "\\n", "\\r\\n", " "], ids=["lines", "n", "r and n", "blanks"])
def test_pem_lines(end: str) -> None:
    lines = ["-----BEGIN CERTIFICATE-----", "MIIB+/", "AAA=", "-----END CERTIFICATE-----"]
    given = end.join([*lines, *lines]) + ("\n" if end == "\n" else end)
    source = source_of("postgresql://u@db.example/app", cacert=given)
    assert source.cacert is not None
    assert source.cacert.split() == " ".join([*lines, *lines]).split()
    assert source.cacert.count("-----\nMIIB+/\nAAA=\n-----END") == 2
