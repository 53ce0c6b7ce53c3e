"""`client_auth`: which keys and addresses a config names, and what it is warned of."""

from __future__ import annotations

import base64
from ipaddress import ip_network
from pathlib import Path

import pytest

from headwater.api.auth.keys import DAY
from headwater.api.auth.settings import FIREBASE_KEYS, SUPABASE_LIFETIME
from headwater.cli.config import ServiceConfig
from tests.unit.config.configs import load, mistakes

SOURCE = 'replication: {{connections: [{{uri: "postgresql://u:p@{host}/d", sslmode: disable}}]}}\n'
PROJECT = SOURCE.format(host="db.abcdefghij.supabase.co")


def auth(tmp_path: Path, text: str, source: str = PROJECT) -> ServiceConfig:
    return load(tmp_path, f"{source}client_auth: {text}\n")


def test_key_addresses(tmp_path: Path) -> None:
    one = auth(tmp_path, "{audience: [app], jwks_uri: 'https://a.example/jwks'}")
    assert [address.url for address in one.auth.addresses] == ["https://a.example/jwks"]
    assert (one.auth.addresses[0].audience, one.auth.addresses[0].max_lifetime) == (None, DAY)
    two = auth(tmp_path, "{audience: [app], jwks_uri: ['https://a.example/jwks', 'http://auth:6060/keys']}")
    assert [address.url for address in two.auth.addresses] == ["https://a.example/jwks", "http://auth:6060/keys"]
    assert one.warnings == two.warnings == ()


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("nonsense", "[PSYNC_S3102] client_auth.jwks_uri: is not a URL; write the URL of your keys"),
        ("''", "[PSYNC_S3102] client_auth.jwks_uri: is not a URL"),
        ("https://", "[PSYNC_S3102] client_auth.jwks_uri: is not a URL"),
        ("'https://a b/jwks'", "[PSYNC_S3102] client_auth.jwks_uri: is not a URL"),
        ("https://a:port/jwks", "[PSYNC_S3102] client_auth.jwks_uri: is not a URL"),
        ("'https://[::1/jwks'", "[PSYNC_S3102] client_auth.jwks_uri: is not a URL"),
        ("https://münchen.example/jwks", "[PSYNC_S3102] client_auth.jwks_uri: is not a URL"),
        ("file://host/etc/keys", "[PSYNC_S3103] client_auth.jwks_uri: is not an HTTP URL; use https"),
        ("https://me:secret@a/jwks", "[PSYNC_S3102] client_auth.jwks_uri: has a login, which would not be sent"),
    ],
)
def test_wrong_address(tmp_path: Path, uri: str, said: str) -> None:
    told = mistakes(tmp_path, f"{PROJECT}client_auth: {{jwks_uri: {uri}}}")
    assert said in told
    assert "secret" not in told


def test_refused_ranges(tmp_path: Path) -> None:
    ranges = "[local, 10.0.0.1/8, 2001:db8::/32, 192.0.2.1]"
    rules = auth(tmp_path, f"{{audience: [app], supabase: true, jwks_reject_ip_ranges: {ranges}}}").auth.rules
    assert rules.ranges == (ip_network("10.0.0.0/8"), ip_network("2001:db8::/32"), ip_network("192.0.2.1"))
    assert (rules.local, rules.ipv4_only) == (True, False)


def test_block_local_jwks(tmp_path: Path) -> None:
    rules = auth(tmp_path, "{supabase: true, block_local_jwks: true}").auth.rules
    assert (rules.local, rules.ipv4_only) == (True, True)
    rules = auth(tmp_path, "{supabase: true, block_local_jwks: false}").auth.rules
    assert (rules.local, rules.ipv4_only) == (False, False)


def test_allow_local_jwks(tmp_path: Path) -> None:
    config = auth(tmp_path, "{supabase: true, allow_local_jwks: true}")
    (warning,) = config.warnings
    assert "client_auth.allow_local_jwks: has no effect here: local addresses are allowed" in warning
    assert "did you mean" not in warning


@pytest.mark.parametrize(
    "text",
    [
        "{jwks_uri: 'http://127.0.0.1/jwks', jwks_reject_ip_ranges: [local]}",
        "{jwks_uri: 'http://[::1]/jwks', block_local_jwks: true}",
        "{jwks_uri: 'http://192.0.2.7/jwks', jwks_reject_ip_ranges: 192.0.2.0/24}",
    ],
)
def test_address_in_a_refused_range(tmp_path: Path, text: str) -> None:
    assert "[PSYNC_S2203] client_auth.jwks_uri: " in mistakes(tmp_path, f"{PROJECT}client_auth: {text}")


def test_supabase_lifetime() -> None:
    assert SUPABASE_LIFETIME == 7 * DAY + 20 * 60


def test_supabase_keys(tmp_path: Path) -> None:
    config = auth(tmp_path, "{supabase: true}")
    (address,) = config.auth.addresses
    assert address.url == "https://abcdefghij.supabase.co/auth/v1/.well-known/jwks.json"
    assert (address.audience, address.max_lifetime) == (frozenset({"authenticated"}), SUPABASE_LIFETIME)
    assert config.warnings == ()


@pytest.mark.parametrize("host", ["db.abc.supabase.co.evil.example", "db.a.b.supabase.co", "h"])
def test_supabase_on_another_host(tmp_path: Path, host: str) -> None:
    config = auth(tmp_path, "{supabase: true}", SOURCE.format(host=host))
    assert config.auth.addresses == ()
    assert "client_auth.supabase: the source is not at db.<project>.supabase.co" in config.warnings[0]


def several(*hosts: str) -> str:
    connections = [f'{{uri: "postgresql://u:p@{host}/d", tag: t{n}, sslmode: disable}}' for n, host in enumerate(hosts)]
    return f"replication: {{connections: [{', '.join(connections)}]}}\n"


@pytest.mark.parametrize("first", [0, 1])
def test_supabase_project_does_not_depend_on_the_order_of_sources(tmp_path: Path, first: int) -> None:
    hosts = ["db.abcdefghij.supabase.co", "db.example.com"]
    config = auth(tmp_path, "{supabase: true}", several(hosts[first], hosts[1 - first]))
    assert [address.url for address in config.auth.addresses] == [
        "https://abcdefghij.supabase.co/auth/v1/.well-known/jwks.json"
    ]
    assert config.warnings == ()


def test_sources_of_several_supabase_projects(tmp_path: Path) -> None:
    both = several("db.abc.supabase.co", "db.xyz.supabase.co")
    told = mistakes(tmp_path, f"{both}client_auth: {{supabase: true}}")
    assert "client_auth.supabase: the sources are of several projects (abc, xyz); set jwks_uri" in told
    uri = "https://abc.supabase.co/auth/v1/.well-known/jwks.json"
    named = auth(tmp_path, f"{{supabase: true, jwks_uri: '{uri}', audience: [authenticated]}}", both)
    assert [address.url for address in named.auth.addresses] == [uri]
    assert named.warnings == ()
    secret = "a-secret-of-thirty-two-characters-or-more"
    assert len(auth(tmp_path, f"{{supabase: true, supabase_jwt_secret: {secret}}}", both).auth.keys) == 1


def test_supabase_secret(tmp_path: Path) -> None:
    secret = "super-secret-jwt-token-with-at-least-32-characters-long"
    text = f"{{supabase: true, supabase_jwt_secret: {secret}}}"
    config = auth(tmp_path, text, SOURCE.format(host="h"))
    (key,) = config.auth.keys
    assert (key.kid, key.algorithms, key.material) == (None, frozenset({"HS256"}), secret.encode())
    assert (key.audience, key.max_lifetime) == (frozenset({"authenticated"}), SUPABASE_LIFETIME)
    assert config.warnings == ()
    assert secret not in repr(config)
    assert len(auth(tmp_path, text).auth.addresses) == 1


def test_supabase_secret_without_supabase(tmp_path: Path) -> None:
    config = auth(tmp_path, "{supabase_jwt_secret: a-secret-of-thirty-two-characters, audience: [app]}")
    assert config.auth.keys == ()
    assert any("client_auth.supabase_jwt_secret: has no effect here" in warning for warning in config.warnings)


def secret_of(size: int) -> str:
    return base64.urlsafe_b64encode(b"s" * size).decode()


def test_firebase_keys(tmp_path: Path) -> None:
    config = auth(tmp_path, "{firebase: my-project, audience: [app], jwks_uri: 'https://a.example/jwks'}")
    own, shared = config.auth.addresses
    assert (own.audience, shared.audience) == (None, frozenset({"my-project"}))
    assert shared.url == FIREBASE_KEYS
    assert config.warnings == auth(tmp_path, "{firebase: my-project}").warnings == ()
    assert "client_auth.firebase: is empty; write the id" in mistakes(
        tmp_path, f"{PROJECT}client_auth: {{firebase: ''}}"
    )


def test_short_secret(tmp_path: Path) -> None:
    def jwks(size: int) -> str:
        return f"{{audience: [app], jwks: {{keys: [{{kty: oct, alg: HS512, k: {secret_of(size)}}}]}}}}"

    assert auth(tmp_path, jwks(32)).warnings == ()
    (warning,) = auth(tmp_path, jwks(31)).warnings
    assert "client_auth.jwks.keys[0].k: has 31 bytes, so that anyone with a token can guess it by trying" in warning
    assert "openssl rand -base64 32" in warning
    assert "the secret has 15 bytes" in mistakes(tmp_path, f"{PROJECT}client_auth: {jwks(15)}")


def test_short_supabase_secret(tmp_path: Path) -> None:
    (warning,) = auth(tmp_path, "{supabase: true, supabase_jwt_secret: sixteen-bytes-..}").warnings
    assert "client_auth.supabase_jwt_secret: has 16 bytes" in warning
    told = mistakes(tmp_path, f"{PROJECT}client_auth: {{supabase: true, supabase_jwt_secret: short-secret}}")
    assert "[PSYNC_S2201] client_auth.supabase_jwt_secret: the secret has 12 bytes" in told
    assert "short-secret" not in told
    told = mistakes(tmp_path, f"{PROJECT}client_auth: {{supabase: true, supabase_jwt_secret: !env EMPTY}}", EMPTY="")
    assert "the secret has 0 bytes" in told


@pytest.mark.parametrize("why", ["use: enc", "key_ops: [encrypt]"])
def test_encryption_key(tmp_path: Path, why: str) -> None:
    key = f"{{kty: RSA, kid: e, n: AQAB, e: AQAB, {why}}}"
    config = auth(tmp_path, f"{{supabase: true, jwks: {{keys: [{key}]}}}}")
    assert config.auth.keys == ()
    (warning,) = config.warnings
    assert warning.endswith("client_auth.jwks.keys[0]: is not a key for signatures, so it is ignored")


def test_no_token_accepted(tmp_path: Path) -> None:
    (warning,) = auth(tmp_path, "{audience: [app]}").warnings
    assert "every token is refused; add client_auth.jwks_uri or client_auth.jwks.keys" in warning
    (warning,) = auth(tmp_path, "{jwks_uri: 'https://a.example/jwks'}").warnings
    assert "client_auth.audience: is empty, so every token is refused" in warning
    (warning,) = auth(tmp_path, "{jwks_uri: 'https://a.example/jwks', supabase: true}").warnings
    assert "client_auth.audience: is empty" in warning
