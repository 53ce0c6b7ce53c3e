"""The service config: the published shape loads as it is, and every mistake is named with its place and its fix."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from headwater.api.http.limits import HttpLimits
from headwater.config import ConfigError, ConfigSource, ServiceConfig, load_config
from headwater.config.sources import with_login
from headwater.storage.address import PostgresAddress, SqliteAddress
from headwater.telemetry.trace_choice import TraceSettings

KEY = "{kty: oct, alg: HS256, kid: k, k: c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA}"
MINIMAL = f"""
replication:
  connections:
    - {{type: postgresql, uri: "postgresql://app:pass@db.example:5433/shop", sslmode: disable}}
storage: {{type: sqlite, path: data}}
client_auth: {{jwks: {{keys: [{KEY}]}}, audience: [app]}}
sync_config: {{path: sync.yaml}}
"""


def load(tmp_path: Path, text: str, name: str = "headwater.yaml", **environment: str) -> ServiceConfig:
    file = tmp_path / name
    file.write_text(text)
    return load_config(ConfigSource(path=file), environment, tmp_path)


def mistakes(tmp_path: Path, text: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, **environment)
    return str(caught.value)


def test_a_config_in_the_published_shape_loads(tmp_path: Path) -> None:
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


def test_the_limits_of_the_door_are_read(tmp_path: Path) -> None:
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


def test_a_device_may_know_of_more_buckets_than_it_may_have(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).api.max_known_buckets_per_connection == 20_000
    raised = MINIMAL + "api: {parameters: {max_buckets_per_connection: 50000, max_subscriptions_per_connection: 5}}"
    assert load(tmp_path, raised).api.max_known_buckets_per_connection == 100_000
    assert load(tmp_path, raised).api.max_subscriptions_per_connection == 5


def test_secrets_do_not_show_when_a_config_is_printed(tmp_path: Path) -> None:
    printed = repr(load(tmp_path, MINIMAL + "api: {tokens: [hush]}"))
    assert not any(secret in printed for secret in ("pass@", "'pass'", "hush", "c2VjcmV0"))


def test_paths_are_relative_to_the_file_wherever_the_process_runs(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "sync.yaml").write_text("streams: {}")
    (folder / "headwater.yaml").write_text(MINIMAL)
    config = load_config(ConfigSource(path=Path("etc/headwater.yaml")), {}, tmp_path)
    assert config.sync_text() == "streams: {}"
    assert config.storage == SqliteAddress(str(folder / "data"))


def test_a_store_can_be_a_schema_in_postgres(tmp_path: Path) -> None:
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


def test_spark_may_run_elsewhere_when_the_store_is_in_postgres(tmp_path: Path) -> None:
    storage = "storage: {type: postgresql, hostname: h, database: d, username: u, sslmode: disable, schema: hw_2}"
    config = load(tmp_path, f"{storage}\nspark: {{master: yarn}}")
    assert config.spark.master == "yarn"
    assert str(config.storage) == "h:5432/d, schema hw_2"


def test_explicit_keys_win_over_the_uri(tmp_path: Path) -> None:
    text = """
    replication: {connections: [{uri: "postgres://a:b@one:6000/x?connect_timeout=7&sslmode=disable", hostname: two,
                                 port: "6001", password: c, publications: [powersync], slot_name_prefix: hw_}]}
    """
    source = load(tmp_path, text).source()
    assert (source.host, source.port, source.user, source.password) == ("two", 6001, "a", "c")
    assert source.connect_timeout == 7
    assert source.sslmode == "verify-full"  # never taken from the URI
    assert (source.publications, source.slot_prefix) == (("powersync",), "hw_")


def test_the_uri_may_carry_escaped_characters(tmp_path: Path) -> None:
    text = "replication: {connections: [{uri: 'postgresql://us%40er:p%2Fw%23@db/na%20me'}]}"
    source = load(tmp_path, text).source()
    assert (source.user, source.password, source.database) == ("us@er", "p/w#", "na me")


@pytest.mark.parametrize(
    ("written", "value", "port"),
    [("!env PORT::number", "9000", 9000), ("!env PORT", "9001", 9001), ("!env PORT::string", "9002", 9002)],
)
def test_values_come_from_any_environment_variable(tmp_path: Path, written: str, value: str, port: int) -> None:
    assert load(tmp_path, f"port: {written}", PORT=value).port == port


def test_a_variable_that_is_set_but_empty_is_an_empty_text(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL + "host: !env HOST", HOST="").host == "0.0.0.0"


@pytest.mark.parametrize("value", ["true", "FALSE"])
def test_a_variable_can_be_a_truth_value(tmp_path: Path, value: str) -> None:
    text = "sync_config: {content: 'x', exit_on_error: !env STRICT::boolean}"
    config = load(tmp_path, text, STRICT=value).sync_config
    assert config is not None
    assert config.exit_on_error is (value == "true")


@pytest.mark.parametrize("name", ["POWERSYNC_CONFIG_B64", "HEADWATER_CONFIG_B64"])
def test_the_config_can_come_as_base64_from_the_environment(tmp_path: Path, name: str) -> None:
    encoded = base64.encodebytes(b"port: 9000").decode()
    assert load_config(ConfigSource(), {name: encoded}, tmp_path).port == 9000


def test_the_command_line_wins_over_the_environment_and_the_environment_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "headwater.yaml").write_text("port: 1")
    (tmp_path / "other.yaml").write_text("port: 2")
    environment = {"POWERSYNC_CONFIG_PATH": "other.yaml"}
    assert load_config(ConfigSource(), {}, tmp_path).port == 1
    assert load_config(ConfigSource(), environment, tmp_path).port == 2
    assert load_config(ConfigSource(path=Path("headwater.yaml")), environment, tmp_path).port == 1


def test_json_is_read_too(tmp_path: Path) -> None:
    text = json.dumps({"port": 9000, "sync_config": {"content": "streams: {}"}}, indent="\t")
    assert load(tmp_path, text, "config.json").port == 9000
    encoded = base64.b64encode(text.encode()).decode()
    assert load_config(ConfigSource(base64=encoded), {}, tmp_path).port == 9000


@pytest.mark.parametrize("name", ["POWERSYNC_SYNC_CONFIG_B64", "POWERSYNC_SYNC_RULES_B64"])
def test_the_sync_config_can_come_as_base64(tmp_path: Path, name: str) -> None:
    encoded = base64.b64encode(b"streams: {a: 1}").decode()
    assert load(tmp_path, MINIMAL, **{name: encoded}).sync_text() == "streams: {a: 1}"


@pytest.mark.parametrize("key", ["sync_config", "sync_rules"])
def test_the_sync_config_can_stand_in_the_service_config(tmp_path: Path, key: str) -> None:
    assert load(tmp_path, f"{key}:\n  content: |\n    streams: {{}}\n").sync_text() == "streams: {}\n"


def test_the_endpoint_keeps_64_mib_of_history_at_hand_unless_told_otherwise(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).api.chunk_cache_mb == 64
    assert load(tmp_path, MINIMAL + "api: {parameters: {chunk_cache_mb: 0}}").api.chunk_cache_mb == 0
    assert "api.parameters.chunk_cache_mb" in mistakes(tmp_path, MINIMAL + "api: {parameters: {chunk_cache_mb: -1}}")


def test_operators_may_have_a_port_of_their_own(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).api.admin_port is None
    api = load(tmp_path, MINIMAL + "api: {admin_port: 9000, admin_host: 127.0.0.1}").api
    assert (api.admin_port, api.admin_host) == (9000, "127.0.0.1")
    said = mistakes(tmp_path, MINIMAL + "port: 9000\napi: {admin_port: 9000}")
    assert "api.admin_port: is the same as `port`" in said


def test_the_replicator_holds_64_mib_of_rows_at_a_time_unless_told_otherwise(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).source().batch_bytes == 64 << 20
    told = MINIMAL.replace("replication:\n", "replication:\n  batch_mb: 16\n")
    assert load(tmp_path, told).source().batch_bytes == 16 << 20


def test_anchors_and_merge_keys_are_plain_yaml(tmp_path: Path) -> None:
    text = """
    x-defaults: &defaults {sslmode: disable, username: u, database: d}
    replication: {connections: [{<<: *defaults, hostname: h, database: other}]}
    """
    config = load(tmp_path, text)
    assert (config.source().user, config.source().database) == ("u", "other")


def test_unknown_keys_are_a_warning_with_a_guess(tmp_path: Path) -> None:
    warnings = load(tmp_path, MINIMAL + "prot: 1\napi: {parameters: {max_bucket_per_connection: 5}}\n").warnings
    assert any("line 8, column 7: prot: unknown key, ignored; did you mean port?" in w for w in warnings)
    assert any("did you mean max_buckets_per_connection?" in w for w in warnings)


def test_keys_that_say_what_is_so_anyway_are_passed_over(tmp_path: Path) -> None:
    text = """
    migrations: {disable_auto_migration: false}
    telemetry: {disable_telemetry_sharing: true, prometheus_port: 9090}
    healthcheck: {probes: {use_http: true, use_filesystem: false}}
    """
    config = load(tmp_path, MINIMAL + "\n".join(line.strip() for line in text.splitlines()))
    assert config.warnings == ()
    assert config.prometheus_port == 9090


def test_metrics_are_answered_here_unless_told(tmp_path: Path) -> None:
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
def test_traces_are_sent_only_where_an_endpoint_is_named(
    tmp_path: Path, text: str, environment: dict[str, str], expected: TraceSettings | None
) -> None:
    config = load(tmp_path, MINIMAL + text, **environment)
    assert config.traces == expected
    assert config.warnings == ()


def test_an_endpoint_for_traces_has_to_be_one_of_http(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not an address of HTTP"):
        load(tmp_path, MINIMAL + "traces: {endpoint: 'collector:4317'}")
    grpc = {"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    (warning,) = load(tmp_path, MINIMAL, **grpc).warnings
    assert "http/protobuf" in warning


def test_keys_without_effect_are_named_with_what_holds_instead(tmp_path: Path) -> None:
    (warning,) = load(tmp_path, MINIMAL + "migrations: {disable_auto_migration: true}").warnings
    assert warning == (
        "line 8, column 38: migrations.disable_auto_migration: has no effect here:"
        " a store is upgraded when it is opened"
    )


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
def test_who_speaks_of_probes_names_those_that_are_to_be_answered(
    tmp_path: Path, healthcheck: str, answered: bool
) -> None:
    assert load(tmp_path, f"{MINIMAL}healthcheck: {healthcheck}").probes is answered


def test_the_environment_sets_log_level_and_format(tmp_path: Path) -> None:
    text = "system: {logging: {level: warn}}"
    assert load(tmp_path, text).logging.level == "WARNING"
    logging = load(tmp_path, text, PS_LOG_LEVEL="DEBUG", PS_LOG_FORMAT="json").logging
    assert (logging.level, logging.format) == ("DEBUG", "json")
    assert load(tmp_path, text, NODE_ENV="production").logging.format == "json"


SOURCE = "replication:\n  connections:\n  - "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port: [1", "line 1, column 9: [HW_7001] not valid YAML"),
        ('port: 1\nhost: "a\\ud83d"', "line 2, column 9: [HW_7001] not valid YAML: half of a surrogate pair"),
        ('host: "\\UFFFFFFFF"', "[HW_7001] not valid YAML: nested too deeply, or a malformed value"),
        ("- a", "line 1, column 1: [HW_7001] must be a mapping, not a list"),
        ("port: 1\nport: 2", "line 2, column 1: [HW_7001] port: this key is given twice"),
        ("port: eight", "line 1, column 7: [HW_7001] port: must be a whole number, not text"),
        ("port: 70000", "port: must be a number from 0 to 65535"),
        ("port: true", "port: must be a whole number, not true or false"),
        ("host: 5", "host: must be text, not a number; put it in quotes"),
        ("port: !env NOPE", "line 1, column 7: [HW_7001] environment variable NOPE is not set"),
        ("port: !env WORD::number", "environment variable WORD is not a number"),
        ("port: !env WORD::boolean", "environment variable WORD is neither true nor false"),
        ("port: !env WORD::date", "unknown type ::date after WORD; use ::string, ::number or ::boolean"),
        ("port: !secret WORD", "unknown tag !secret"),
        ("a: &a [*a]", "this alias contains itself"),
        ("api: {tokens: [1]}", "api.tokens: must be a list of texts"),
        ("api: {tokens: ['']}", "line 1, column 15: [HW_7001] api.tokens: an empty token would open the admin API"),
        ("api: {tokens: !env EMPTY}", "api.tokens: an empty token would open the admin API to everybody; set it, or"),
        ("api: {tokens: [good, ' ']}", "api.tokens: an empty token would open the admin API"),
        ('api: {tokens: ["good\\n"]}', "api.tokens: a token begins or ends with white space, which"),
        ("client_auth: {audience: [!env EMPTY]}", "client_auth.audience: an empty text is not an audience"),
        ("client_auth: {jwks: {keys: [{kty: oct, alg: HS256, k: !env EMPTY}]}}", "the secret `k` can't be read"),
        (
            "storage: {type: postgresql, uri: 'postgres://h/d'}",
            "storage.username: neither username nor uri gives it; add username",
        ),
        (
            "storage: {type: postgresql, uri: 'postgres://a:b@h/d', schema: pg_store}",
            "storage.schema: must consist of at most 63 lower-case letters, digits and _",
        ),
        (
            "storage: {type: mongodb}",
            "storage.type: mongodb storage is not supported; use the",
        ),
        (
            "client_auth: {jwks_uri: 'ftp://x/keys'}",
            "[PSYNC_S3103] client_auth.jwks_uri: is not an HTTP URL; use https",
        ),
        (
            "client_auth: {jwks: {keys: [{kty: DSA, alg: RS256}]}}",
            "[PSYNC_S2201] client_auth.jwks.keys[0]: kty 'DSA' is not supported",
        ),
        ("client_auth: {jwks: {keys: [{kty: oct, alg: HS256, k: '***'}]}}", "the secret `k` can't be read"),
        ("sync_config: {path: a}\nsync_rules: {path: b}", "is the old name of sync_config, which is also given"),
        ("spark: {master: 'spark://host:7077'}", "runs tasks on other machines, which can't reach the embedded store"),
        ("upload: {}\nspark: {conf: {a: [1]}}", "spark.conf.a: must be text or a number, not a list"),
        (SOURCE + "type: mysql", "a source of type mysql is not supported; use postgresql"),
        (
            SOURCE + "uri: 'mysql://a@b/c'",
            "[PSYNC_S1109] replication.connections[0].uri: must begin with postgresql://",
        ),
        (SOURCE + "uri: 'postgresql://a:b@c/d'\n    port: 80", "[PSYNC_S1110] replication.connections[0].port"),
        (SOURCE + "uri: 'postgresql://a:b@c:80/d'", "[PSYNC_S1110] replication.connections[0].uri: its port"),
        (SOURCE + "uri: 'postgresql://a:b@c:x/d'", "replication.connections[0].uri: can't be read"),
        (SOURCE + "uri: 'postgresql://u@h'", "[PSYNC_S1105] replication.connections[0].database: neither database"),
        (SOURCE + "{database: d, username: u}", "[PSYNC_S1106] replication.connections[0].hostname"),
        (SOURCE + "{database: d, hostname: h}", "[PSYNC_S1107] replication.connections[0].username"),
        (SOURCE + "{sslmode: verify-ca}", "[PSYNC_S1104] replication.connections[0].cacert: verify-ca requires it"),
        (SOURCE + "{sslmode: verify}", "must be one of verify-full, verify-ca, disable; did you mean verify-ca?"),
        (SOURCE + "{heartbeat_interval_seconds: 2}", "must be a number from 5 to 60"),
        ("replication: {batch_mb: 1}", "replication.batch_mb: must be a number from 4 to 4096"),
        (SOURCE + "{reject_ip_ranges: [local]}", "reject_ip_ranges: is not supported by this version"),
        (SOURCE + "{hostname: a}\n  - {hostname: b}", "2 sources are configured, but this version supports only one"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, message: str) -> None:
    assert message in mistakes(tmp_path, text, WORD="seven", EMPTY="")


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    report = mistakes(tmp_path, "spark: {master: yarn}\nport: x\nstorage: {type: mongodb}\n")
    assert "has 3 errors" in report
    places = [line.split(":")[0].strip() for line in report.splitlines()[1:]]
    assert places == ["line 1, column 17", "line 2, column 7", "line 3, column 17"]


def test_a_mistake_in_json_is_named_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 2, column 9: .* not valid JSON"):
        load(tmp_path, '{\n"port": }', "config.json")


def test_without_any_config_the_ways_to_give_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no service config.*--config FILE, or try `headwater dev`"):
        load_config(ConfigSource(), {}, tmp_path)


def test_base64_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not base64 of UTF-8 text"):
        load_config(ConfigSource(base64="%%%"), {}, tmp_path)


def test_a_missing_sync_config_is_named_when_it_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no sync config is given.*sync_config: \{path: sync.yaml\}"):
        load(tmp_path, "port: 1").sync_text()
    with pytest.raises(ConfigError, match=r"can't be read: No such file .*sync\.yaml"):
        load(tmp_path, MINIMAL).sync_text()


PASSWORD = "pa55"
LOGIN = f"postgresql://app:{PASSWORD}"


@pytest.mark.parametrize("rest", ["@x@db/shop", "/x@db/shop", "?x@db/shop", "#x@db/shop", "@db/shop@x", ":1/5@db/shop"])
@pytest.mark.parametrize(
    ("text", "key"),
    [("replication: {{connections: [{{uri: '{}'}}]}}", "replication.connections[0].uri"),
     ("storage: {{type: postgresql, uri: '{}'}}", "storage.uri")],
    ids=["source", "storage"],
)  # fmt: skip
def test_a_character_that_cuts_the_password_short_is_refused(tmp_path: Path, text: str, key: str, rest: str) -> None:
    report = mistakes(tmp_path, text.format(f"postgresql://app:1024{rest}"))
    assert f"{key}: has an @ or another special character that is not escaped" in report
    assert "write @ in the password as %40, / as %2F, : as %3A, ? as %3F, # as %23, or set it apart" in report
    assert "1024" not in report


def test_a_login_for_somebody_with_more_rights_is_refused_likewise(tmp_path: Path) -> None:
    source = load(tmp_path, MINIMAL).source()
    with pytest.raises(ConfigError, match="an @ or another special character that is not escaped") as caught:
        with_login(source, f"{LOGIN}@x@db/shop")
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        SOURCE + "{{hostname: '{}@db/shop', database: d, username: u}}",
        SOURCE + "{{hostname: db, database: '{}@db/shop', username: u}}",
        SOURCE + "{{hostname: db, database: shop, username: '{}@db/shop'}}",
        SOURCE + "{{type: '{}@db/shop'}}",
        SOURCE + "{{uri: [{}@db/shop]}}",
        SOURCE + "{{uri: !env '{}@db/shop'}}",
        SOURCE + "{{uri: !env '{}::@db/shop'}}",
        SOURCE + "uri: !{}@db/shop",
        SOURCE + "{{a: 1, uri:{}@db/shop, uri:{}@db/shop}}",
        "storage: {{type: '{}@db/shop'}}",
        "storage: {{type: sqlite, path: '{}@db/shop'}}",
        "spark: {{master: '{}@db/shop'}}",
    ],
)
def test_a_uri_at_a_wrong_place_is_not_printed(tmp_path: Path, text: str) -> None:
    report = mistakes(tmp_path, text.format(LOGIN, LOGIN))
    assert PASSWORD not in report


def test_a_uri_where_a_key_or_a_file_name_belongs_is_not_printed(tmp_path: Path) -> None:
    warnings = load(tmp_path, f"{{storage: {{type: sqlite, uri:{LOGIN}@db/shop}}}}").warnings
    assert any("unknown key" in warning for warning in warnings)
    assert PASSWORD not in " ".join(warnings)
    with pytest.raises(ConfigError, match="can't be read") as caught:
        load_config(ConfigSource(path=Path(f"{LOGIN}@db/shop")), {}, tmp_path)
    assert PASSWORD not in str(caught.value)
