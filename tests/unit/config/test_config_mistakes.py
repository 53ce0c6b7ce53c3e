"""Every mistake in a service config is named with its place and its fix, and no message shows a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.api.studio.tokens import AdminToken, Role
from headwater.cli.config import load_config
from headwater.cli.databases import with_login
from headwater.config import ConfigSource
from headwater.config.document import ConfigError
from headwater.config.reader import suggestion
from tests.unit.config.configs import MINIMAL, SOURCE, load, mistakes


def test_secrets_in_repr(tmp_path: Path) -> None:
    printed = repr(load(tmp_path, MINIMAL + "api: {tokens: [hush-hush-hush-hush]}"))
    assert not any(secret in printed for secret in ("pass@", "'pass'", "hush", "c2VjcmV0"))


def test_unknown_key(tmp_path: Path) -> None:
    warnings = load(tmp_path, MINIMAL + "prot: 1\napi: {parameters: {max_bucket_per_connection: 5}}\n").warnings
    assert any("line 8, column 7: prot: unknown key, ignored; did you mean port?" in w for w in warnings)
    assert any("did you mean max_buckets_per_connection?" in w for w in warnings)


def test_key_without_effect(tmp_path: Path) -> None:
    (warning,) = load(tmp_path, MINIMAL + "migrations: {disable_auto_migration: true}").warnings
    assert warning == (
        "line 8, column 38: migrations.disable_auto_migration: has no effect here:"
        " a store is upgraded when it is opened"
    )


@pytest.mark.parametrize(
    ("text", "key", "instead"),
    [
        ("_type: self-hosted", "_type", "what kind of deployment"),
        ("version_label: v1", "version_label", "what is installed"),
        ("storage: {object_storage: {type: s3, bucket: b}", "storage.object_storage", "has all rows itself"),
        ("client_auth: {allow_local_jwks: true", "client_auth.allow_local_jwks", "local addresses are allowed"),
    ],
)
def test_published_key_without_effect(tmp_path: Path, text: str, key: str, instead: str) -> None:
    section = text.partition("{")[0] + "{"
    given = MINIMAL.replace(section, f"{text}, ") if section in MINIMAL else MINIMAL + text
    (warning,) = [each for each in load(tmp_path, given).warnings if key in each]
    assert f"{key}: has no effect here: " in warning
    assert instead in warning


@pytest.mark.parametrize(
    ("name", "known", "guess"),
    [
        ("allow_local_jwks", "block_local_jwks", ""),
        ("jwks_allow_ip_ranges", "jwks_reject_ip_ranges", ""),
        ("enable_telemetry_sharing", "disable_telemetry_sharing", ""),
        ("auto_migration", "disable_auto_migration", ""),
        ("no_max_streams_per_user", "max_streams_per_user", ""),
        ("exclude_tables", "include_tables", ""),
        ("min_connections", "max_connections", ""),
        ("disallow_missing", "allow_missing", ""),
        ("unblock_local_jwks", "block_local_jwks", ""),
        ("blok_local_jwks", "block_local_jwks", "did you mean block_local_jwks?"),
        ("trust_proxies", "trusted_proxies", "did you mean trusted_proxies?"),
        ("max_bucket", "max_buckets", "did you mean max_buckets?"),
    ],
)
def test_guess_of_opposites(name: str, known: str, guess: str) -> None:
    assert suggestion(name, [known]) == guess


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
        (
            "api:\n  tokens:\n  - {token: 5b7c0ffee5b7c0ffee, role: admin}",
            "line 3, column 39: [HW_7001] api.tokens[0].role: must",
        ),
        ("api: {tokens: [{name: Ada}]}", "line 1, column 16: [HW_7001] api.tokens[0]: an empty token would open the"),
        (
            "api: {tokens: [{token: 5b7c0ffee5b7c0ffee, rol: view}]}",
            "api.tokens[0].rol: unknown key; did you mean role?",
        ),
        ("api: {tokens: [{token: short}]}", "line 1, column 16: [HW_7010] api.tokens[0]: a token has under 16"),
        ('api: {tokens: [{token: 5b7c0ffee5b7c0ffee, name: "a\\nb"}]}', "api.tokens[0].name: must be text that can be"),
        (
            "api: {tokens: [5b7c0ffee5b7c0ffee, {token: 5b7c0ffee5b7c0ffee, role: view}]}",
            "api.tokens: the same token is given twice, with different roles or names",
        ),
        ("api: {tokens: ['']}", "line 1, column 16: [HW_7001] api.tokens: an empty token would open the admin API"),
        ("api: {tokens: !env EMPTY}", "api.tokens: an empty token would open the admin API to everybody; set it, or"),
        ("api: {tokens: [good, ' ']}", "api.tokens: an empty token would open the admin API"),
        ('api: {tokens: ["good\\n"]}', "api.tokens: a token begins or ends with white space, which"),
        ("client_auth: {without_audience: [{client_id: a}]}", "client_auth.without_audience[0].issuer: has no issuer"),
        ("client_auth: {without_audience: [{issuer: i}]}", "client_auth.without_audience[0]: names no client"),
        ("client_auth: {without_audience: [{issuer: i, azp: ['']}]}", "names no client of the issuer"),
        (
            "client_auth: {without_audience: [{issuer: i, azp: a, client: b}]}",
            "without_audience[0].client: unknown key",
        ),
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
        ("spark: {idle_minutes: -1}", "spark.idle_minutes: "),
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
        (
            SOURCE + "{sslmode: verify}",
            "must be one of verify-full, verify-ca, require, disable; did you mean verify-ca?",
        ),
        (SOURCE + "{sslmode: prefer}", "must be one of verify-full, verify-ca, require, disable"),
        (SOURCE + "{heartbeat_interval_seconds: 2}", "must be a number from 5 to 60"),
        ("replication: {batch_mb: 1}", "replication.batch_mb: must be a number from 4 to 4096"),
        (SOURCE + "{reject_ip_ranges: [local]}", "reject_ip_ranges: is not supported by this version"),
        (SOURCE + "{hostname: a}\n  - {hostname: b}", "tag: another connection is called default, too"),
        (
            SOURCE + "{tag: a, hostname: h, publications: [p]}\n  - {tag: b, hostname: h, publications: [q, p]}",
            "publications: is the database of a, which has p, too",
        ),
        (SOURCE + "{tag: a}\n  - {tag: a, shard: b}", "shard: another connection has the tag a, too"),
        (SOURCE + "{tag: compaction}", "tag: compaction is what the service calls work on the store itself"),
        (SOURCE + "{tag: 'a b'}", "tag: must be at most 40 letters, digits, _ and -"),
    ],
)
def test_mistake(tmp_path: Path, text: str, message: str) -> None:
    assert message in mistakes(tmp_path, text, WORD="seven", EMPTY="")


CHANGE_ME = "Y2hhbmdlLW1lLWNoYW5nZS1tZS1jaGFuZ2UtbWUtY2hhbmdlLW1l"
"""change-me-change-me-… in base64url."""


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("api: {tokens: [change-me-admin-of-all]}", "api.tokens"),
        ("api: {tokens: [!env TOKEN]}", "api.tokens"),
        ("api: {tokens: ['5b7c0ffee5b7c0ffee', CHANGE_ME_to_something_else]}", "api.tokens"),
        ("api: {tokens: [use_a_better_token_in_production]}", "api.tokens"),
        ("client_auth: {jwks: {keys: [{kty: oct, alg: HS256, k: !env KEY}]}}", "client_auth.jwks.keys[0].k"),
        (
            "client_auth: {jwks: {keys: [{kty: oct, alg: HS256, k: change-me-change-me-change-me-change-me}]}}",
            "client_auth.jwks.keys[0].k",
        ),
        (
            "client_auth: {supabase: true, supabase_jwt_secret: change-me-change-me-change-me-change}",
            "client_auth.supabase_jwt_secret",
        ),
        (
            SOURCE + "{hostname: h, database: d, username: u, password: !env TOKEN}",
            "replication.connections[0].password",
        ),
        (SOURCE + "uri: 'postgresql://u:Change-Me%21@h/d'", "replication.connections[0].uri"),
        ("storage: {type: postgresql, uri: 'postgresql://u@h/d', password: changeme}", "storage.password"),
        (
            SOURCE + "uri: 'postgresql://u:p@h/d'\nupload: {role: r, tables: {t: {}}, username: w, password: changeme}",
            "upload.password",
        ),
    ],
)
def test_example_secret(tmp_path: Path, text: str, key: str) -> None:
    told = mistakes(tmp_path, text, TOKEN="change-me-admin-token", KEY=CHANGE_ME)
    assert f"[HW_7010] {key}: is the secret of an example, which everybody knows; " in told
    assert "line " in told
    assert "openssl rand -" in told
    assert "hange-me" not in told.lower()


def test_short_admin_token(tmp_path: Path) -> None:
    told = mistakes(tmp_path, f"api: {{tokens: [{'a1' * 8}, fifteen-letters]}}")
    assert "[HW_7010] api.tokens: a token has under 16 characters, so that it can be guessed; make one with: " in told
    assert "fifteen" not in told
    assert load(tmp_path, MINIMAL + f"api: {{tokens: [{'a1' * 8}]}}").api.tokens == (AdminToken("a1" * 8),)


def test_roles_and_names_of_admin_tokens(tmp_path: Path) -> None:
    tokens = f"[{'a1' * 8}, {{token: {'b2' * 8}, role: view, name: Ada}}]"
    config = load(tmp_path, MINIMAL + f"api: {{tokens: {tokens}}}")
    assert config.api.tokens == (AdminToken("a1" * 8), AdminToken("b2" * 8, Role.VIEW, "Ada"))
    assert "b2b2" not in repr(config)


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    report = mistakes(tmp_path, "spark: {master: yarn}\nport: x\nstorage: {type: mongodb}\n")
    assert "has 3 errors" in report
    places = [line.split(":")[0].strip() for line in report.splitlines()[1:]]
    assert places == ["line 1, column 17", "line 2, column 7", "line 3, column 17"]


def test_mistake_in_json(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 2, column 9: .* not valid JSON"):
        load(tmp_path, '{\n"port": }', "config.json")


PASSWORD = "pa55"
LOGIN = f"postgresql://app:{PASSWORD}"


@pytest.mark.parametrize("rest", ["@x@db/shop", "/x@db/shop", "?x@db/shop", "#x@db/shop", "@db/shop@x", ":1/5@db/shop"])
@pytest.mark.parametrize(
    ("text", "key"),
    [("replication: {{connections: [{{uri: '{}'}}]}}", "replication.connections[0].uri"),
     ("storage: {{type: postgresql, uri: '{}'}}", "storage.uri")],
    ids=["source", "storage"],
)  # fmt: skip
def test_unescaped_password(tmp_path: Path, text: str, key: str, rest: str) -> None:
    report = mistakes(tmp_path, text.format(f"postgresql://app:1024{rest}"))
    assert f"{key}: has an @ or another special character that is not escaped" in report
    assert "write @ in the password as %40, / as %2F, : as %3A, ? as %3F, # as %23, or set it apart" in report
    assert "neither" not in report, "what the URI would have given is not missing"
    assert "1024" not in report


def test_unescaped_password_of_a_login(tmp_path: Path) -> None:
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
def test_uri_at_a_wrong_place(tmp_path: Path, text: str) -> None:
    report = mistakes(tmp_path, text.format(LOGIN, LOGIN))
    assert PASSWORD not in report


def test_uri_as_key_or_file(tmp_path: Path) -> None:
    warnings = load(tmp_path, f"{{storage: {{type: sqlite, uri:{LOGIN}@db/shop}}}}").warnings
    assert any("unknown key" in warning for warning in warnings)
    assert PASSWORD not in " ".join(warnings)
    with pytest.raises(ConfigError, match="can't be read") as caught:
        load_config(ConfigSource(path=Path(f"{LOGIN}@db/shop")), {}, tmp_path)
    assert PASSWORD not in str(caught.value)
