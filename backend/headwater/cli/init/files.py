"""The files that `headwater init` writes."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from headwater.config.errors import ConfigError, ConfigIssue
from headwater.source.connect import SourceSettings

CONFIG, RULES, SECRETS = "headwater.yaml", "sync.yaml", ".env"
_SUPABASE = re.compile(r"db\.[a-z0-9]+\.supabase\.co")
_PLAIN = re.compile(r"[A-Za-z_][\w.-]*")
_YAML_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def write_files(directory: Path, source: SourceSettings, rules: str, *, force: bool) -> None:
    """Write the service config, the sync config and the secrets. Raises ConfigError when one of them is there already,
    unless `force`, and when they can't be written."""
    texts = {CONFIG: config_text(source), RULES: rules, SECRETS: secrets_text(source)}
    there = [name for name in texts if (directory / name).exists()]
    if there and not force:
        issue = ConfigIssue(f"{', '.join(there)} exists already", fix="pass --force to overwrite, or --directory")
        raise ConfigError(str(directory.resolve()), [issue])
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write(directory, texts)
    except OSError as error:
        issue = ConfigIssue(f"the files can't be written: {error.strerror}", fix="check the directory's rights")
        raise ConfigError(str(directory.resolve()), [issue]) from error


def _write(directory: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        path = directory / name
        if name == SECRETS:
            path.unlink(missing_ok=True)  # an old one may be open to all
        mode = 0o600 if name == SECRETS else 0o666
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
            file.write(text)


def secrets_text(source: SourceSettings) -> str:
    """The text of .env: the password, and new secrets for tokens of devices and of operators."""
    lines = ["# Secrets, which headwater.yaml reads by !env. Keep this file out of version control."]
    if source.password:
        lines.append(f"PS_SOURCE_PASSWORD={_quoted(source.password)}")
    if not _SUPABASE.fullmatch(source.host):
        lines.append(f"PS_JWT_SECRET={secrets.token_urlsafe(32)}")
    lines.append(f"PS_ADMIN_TOKEN={secrets.token_urlsafe(32)}")
    return "\n".join(lines) + "\n"


def config_text(source: SourceSettings) -> str:
    """The text of headwater.yaml, without secrets."""
    password = "\n      password: !env PS_SOURCE_PASSWORD" if source.password else ""
    return f"""\
# What the keys mean: docs/service-config.md. `!env NAME` comes from the environment, or from .env beside this file.
replication:
  connections:
    - type: postgresql
      hostname: {_scalar(source.host)}
      port: {source.port}
      database: {_scalar(source.database)}
      username: {_scalar(source.user)}{password}
      sslmode: {source.sslmode}

storage:
  type: sqlite              # a directory on this machine; postgresql for several processes or machines
  path: ./headwater-data

client_auth:
{_client_auth(source)}
port: 8080

sync_config:
  path: {RULES}

api:
  tokens: [!env PS_ADMIN_TOKEN]   # for operators
"""


def _client_auth(source: SourceSettings) -> str:
    if _SUPABASE.fullmatch(source.host):
        return (
            "  supabase: true            # the keys of this project; tokens of supabase.auth are accepted as they are\n"
        )
    return f"""\
  audience: [{_scalar(source.database)}]      # tokens name it as `aud`
  jwks:                     # what your backend signs tokens with; or jwks_uri: https://… of your identity provider
    keys:
      - {{kty: oct, alg: HS256, kid: main, k: !env PS_JWT_SECRET}}
"""


def _quoted(text: str) -> str:
    """A value as the readers of .env files have it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _scalar(text: str) -> str:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS
    return text if plain else json.dumps(text, ensure_ascii=False)
