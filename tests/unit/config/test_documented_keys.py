"""docs/service-config.md says of every key of the published config what it does here, and that is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from headwater.cli.config import load_config
from headwater.config import ConfigSource
from headwater.config.document import ConfigError
from tests.unit.config.configs import KEY

DOCUMENT = Path(__file__).parents[3] / "docs" / "service-config.md"
PUBLISHED = """
replication.connections[]: type id tag debug_api uri hostname port database username password sslmode cacert
    client_certificate client_private_key tls_servername reject_ip_ranges slot_name_prefix max_pool_size
    connect_timeout snapshot_socket_timeout heartbeat_interval_seconds
storage: type max_pool_size default_storage_version uri hostname port database username password sslmode cacert
    client_certificate client_private_key tls_servername reject_ip_ranges connect_timeout object_storage
storage.batch_limits: max_estimated_size max_record_count max_current_data_batch_size
client_auth: jwks_uri jwks.keys audience supabase supabase_jwt_secret jwks_reject_ip_ranges block_local_jwks
    allow_local_jwks
sync_config: path content exit_on_error
api: tokens
api.parameters: max_concurrent_connections max_data_fetch_concurrency max_buckets_per_connection
    max_parameter_query_results checkpoint_request_retention_minutes bucket_count_cache_ttl_minutes
migrations: disable_auto_migration
telemetry: prometheus_port disable_telemetry_sharing internal_service_endpoint
healthcheck.probes: use_http use_filesystem use_legacy
system.logging: level format
: port metadata parameters sync_rules _type version_label
"""
ENVIRONMENT = {
    "PS_SOURCE_PASSWORD": "a password",
    "PS_STORAGE_PASSWORD": "a password",
    "PS_JWT_SECRET": "a1" * 22,
    "SHORT_SECRET": "a1" * 11,
    "SUPABASE_JWT_SECRET": "a1" * 22,
    "PS_ADMIN_TOKEN": "a1" * 22,
    "PS_VIEW_TOKEN": "b2" * 22,
}
Row = tuple[str, str, str]
"""Key, an example as YAML, and what it does here."""


def rows() -> Iterator[Row]:
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        found = re.fullmatch(r"\| `(.+?)` \| `(.+?)` \| (\w+) \|.*\|", line)
        if found is not None:
            yield found[1], found[2], found[3]


def config(key: str, example: str) -> dict[str, object]:
    """One that has nothing to warn of, but for that key. Its source is a Supabase project's."""
    server: dict[str, object] = {"type": "postgresql", "uri": "postgresql://u:p@db.abc.supabase.co/d", "cacert": "PEM"}
    whole: dict[str, object] = {
        "replication": {"connections": [dict(server)]},
        "storage": dict(server),
        "client_auth": {"jwks": {"keys": [YAML(typ="safe").load(KEY)]}, "audience": ["app"], "supabase": True},
    }
    at: object = whole
    *parents, last = [part for part in re.split(r"\.|(\[\])", key) if part]
    for name in parents:
        if isinstance(at, list):
            at = at[0]
        else:
            assert isinstance(at, dict)
            at = at.setdefault(name, {})
    assert isinstance(at, dict)
    at[last] = YAML().load(example)  # keeps `!env`
    return whole


def test_every_published_key_is_documented() -> None:
    published = {
        f"{section}.{key}".removeprefix(".")
        for section, keys in re.findall(r"(?m)^([^ :\n]*):((?: .*|\n +.*)+)", PUBLISHED)
        for key in keys.split()
    }
    assert {key for key, _, _ in rows()} == published


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: f"{row[0]}: {row[1]}")
def test_documented_keys(row: Row, tmp_path: Path) -> None:
    key, example, here = row
    place = key.replace("[]", "[0]")
    with (tmp_path / "headwater.yaml").open("w") as file:
        YAML().dump(config(key, example), file)
    source = ConfigSource(path=tmp_path / "headwater.yaml")
    if here == "refused":
        with pytest.raises(ConfigError) as refused:
            load_config(source, ENVIRONMENT, tmp_path)
        assert [issue.key.startswith(place) for issue in refused.value.issues] == [True]
        return
    warnings = load_config(source, ENVIRONMENT, tmp_path).warnings
    if here == "works":
        assert warnings == ()
        return
    assert here == "warns"
    (warning,) = warnings
    assert re.search(rf": {re.escape(place)}(\[0\].*)?: ", warning)
    assert "unknown key" not in warning
