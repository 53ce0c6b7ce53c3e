"""`headwater token`: a token that the service of the same config accepts."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import jwt
import pytest

from headwater.api.auth.verify import Verifier
from headwater.cli.api import key_source
from headwater.cli.config import load_config
from headwater.config import ConfigSource
from tests.support.command import Outcome, headwater, headwater_here
from tests.support.fix_api import jwk
from tests.support.signers import signer

SECRET = {"audience": ["app"], "jwks": {"keys": [jwk(kid="main")]}}


def write_config(directory: Path, client_auth: object, host: str = "db.example") -> None:
    connection = {"uri": f"postgresql://app@{host}/shop"}
    whole = {"replication": {"connections": [connection]}, "client_auth": client_auth}
    (directory / "headwater.yaml").write_text(json.dumps(whole))


def made(directory: Path, *arguments: str) -> Outcome:
    return headwater_here("token", *arguments, cwd=directory)


def claims_of(outcome: Outcome, directory: Path) -> dict[str, object]:
    """What the token says, which the service of that config accepts."""
    assert (outcome.code, outcome.err) == (0, "")
    token = outcome.out.removesuffix("\n")
    auth = load_config(ConfigSource(path=directory / "headwater.yaml"), {}, directory).auth
    return dict(asyncio.run(Verifier(key_source(auth), auth.audience).verify(token)).claims)


def test_token(tmp_path: Path) -> None:
    write_config(tmp_path, SECRET)
    outcome = made(tmp_path, "user-1")
    claims = claims_of(outcome, tmp_path)
    assert (claims["sub"], claims["aud"]) == ("user-1", "app")
    assert isinstance(claims["iat"], int)
    assert isinstance(claims["exp"], int)
    assert claims["exp"] - claims["iat"] == 3600
    assert abs(claims["iat"] - time.time()) < 60
    assert outcome.out.count("\n") == 1
    assert jwt.get_unverified_header(outcome.out.strip())["kid"] == "main"


def test_token_output(tmp_path: Path) -> None:
    short = jwk(b"a secret of 24 bytes....")
    write_config(tmp_path, {"audience": ["app"], "jwks": {"keys": [short]}, "supbase": True})
    assert claims_of(headwater("token", "user-1", cwd=tmp_path), tmp_path)["sub"] == "user-1"


def test_claims_lifetime_and_audience(tmp_path: Path) -> None:
    write_config(tmp_path, {**SECRET, "audience": ["app", "tools"]})
    more = ["--claim", "role=admin", "--claim", "level=3", "--claim", 'parameters={"a": [1]}', "--claim", "eq=a=b"]
    claims = claims_of(made(tmp_path, "u", *more, "--expires", "90s", "--audience", "tools"), tmp_path)
    assert (claims["role"], claims["level"], claims["parameters"]) == ("admin", 3, {"a": [1]})
    assert (claims["eq"], claims["aud"]) == ("a=b", "tools")
    assert claims_of(made(tmp_path, "u"), tmp_path)["aud"] == ["app", "tools"]


@pytest.mark.parametrize(
    ("asked", "lifetime"), [("45", 45), ("90s", 90), ("15m", 900), ("24h", 86_400), ("1d", 86_400)]
)
def test_lifetime_units(tmp_path: Path, asked: str, lifetime: int) -> None:
    write_config(tmp_path, SECRET)
    claims = claims_of(made(tmp_path, "u", "--expires", asked), tmp_path)
    assert (claims["iat"], claims["exp"]) == (claims["iat"], int(str(claims["iat"])) + lifetime)


def test_supabase_token(tmp_path: Path) -> None:
    write_config(tmp_path, {"supabase": True, "supabase_jwt_secret": "a-secret-of-thirty-two-characters"})
    assert claims_of(made(tmp_path, "u", "--expires", "7d"), tmp_path)["aud"] == "authenticated"


@pytest.mark.parametrize(
    "client_auth",
    [
        {"audience": ["app"]},
        {"audience": ["app"], "jwks_uri": "https://issuer.example/keys"},
        {"audience": ["app"], "jwks": {"keys": [signer().jwk()]}},
    ],
)
def test_token_without_secret(tmp_path: Path, client_auth: object) -> None:
    write_config(tmp_path, client_auth)
    outcome = made(tmp_path, "u")
    assert (outcome.code, outcome.out) == (1, "")
    assert "[HW_8501] there is no secret in the config to sign with" in outcome.err
    assert "have the issuer of your keys make the token" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["u", "--claim", "role"], "write NAME=VALUE"),
        (["u", "--claim", "exp=5"], "exp is set by USER, --audience and --expires"),
        (["u", "--expires", "soon"], "write it like 90s, 15m, 1h or 7d"),
        (["u", "--expires", "0"], "write it like 90s"),
        (["u", "--expires", "2d"], "[PSYNC_S2104] the token's lifetime is longer than the 86400 s allowed"),
        (["u", "--audience", "other"], "[PSYNC_S2105] the token is for another audience; accepted: app"),
        (["u", "--claim", "parameters=5"], "[PSYNC_S2101] the claim 'parameters' is not an object"),
        ([""], "[PSYNC_S2101] the claim 'sub' can't be used as a user id: it is empty"),
        ([], "Missing argument 'USER'"),
    ],
)
def test_refused_token(tmp_path: Path, arguments: list[str], said: str) -> None:
    write_config(tmp_path, SECRET)
    outcome = made(tmp_path, *arguments)
    assert outcome.code != 0
    assert outcome.out == ""
    assert said in outcome.err


def test_token_without_audience(tmp_path: Path) -> None:
    write_config(tmp_path, {"jwks": {"keys": [jwk()]}})
    assert "none is configured, in client_auth.audience" in made(tmp_path, "u").err
