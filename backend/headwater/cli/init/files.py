"""The files that `headwater init` writes."""

from __future__ import annotations

import json
import re
import secrets
import tempfile
import textwrap
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

from dotenv import dotenv_values

from headwater.cli.init.dotenv_line import dotenv_line
from headwater.config.errors import ConfigError, ConfigIssue
from headwater.source.connect import SourceSettings

CONFIG, RULES, SECRETS = "headwater.yaml", "sync.yaml", ".env"
_ABOVE_SECRETS = "# Secrets, which headwater.yaml reads by !env. Keep this file out of version control.\n"
_SUPABASE = re.compile(r"db\.[a-z0-9]+\.supabase\.co")
_PLAIN = re.compile(r"[A-Za-z_][\w.-]*")
_YAML_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def check_absent(directory: Path, *, force: bool) -> None:
    """Raises ConfigError when a config is there already, unless `force`. A `.env` may be: it is only added to."""
    there = [name for name in (CONFIG, RULES) if (directory / name).exists()]
    if there and not force:
        issue = ConfigIssue(f"{', '.join(there)} exists already", fix="pass --force to overwrite, or --directory")
        raise ConfigError(str(directory.resolve()), [issue])


def write_files(directory: Path, source: SourceSettings, rules: str, *, force: bool) -> tuple[str, ...]:
    """Write the service config, the sync config and the secrets. Returns the names of secrets that were there already,
    and keep their values. Raises ConfigError as `check_absent` does, and when the files can't be written."""
    check_absent(directory, force=force)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        kept = _add_secrets((directory / SECRETS).resolve(), secrets_of(source))
        for name, text in ((CONFIG, config_text(source)), (RULES, rules)):
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        issue = ConfigIssue(f"the files can't be written: {error.strerror}", fix="check the directory's rights")
        raise ConfigError(str(directory.resolve()), [issue]) from error
    return kept


def _add_secrets(path: Path, wanted: Mapping[str, str]) -> tuple[str, ...]:
    """Add the names that the file lacks. It is replaced in one step, and then only its owner may read it."""
    before = path.read_text(encoding="utf-8") if path.exists() else _ABOVE_SECRETS
    known = dotenv_values(stream=StringIO(before), interpolate=False)
    kept = tuple(name for name in wanted if known.get(name) is not None)
    lines = [dotenv_line(name, value) for name, value in wanted.items() if name not in kept]
    text = before + ("\n" if before and not before.endswith("\n") else "") + "".join(lines)
    number, temporary = tempfile.mkstemp(prefix=f"{SECRETS}.", dir=path.parent)  # for its owner only
    try:
        with open(number, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return kept


def secrets_of(source: SourceSettings) -> dict[str, str]:
    """What .env has: the password, and new secrets for tokens of devices and of operators."""
    found = {}
    if source.password:
        found["PS_SOURCE_PASSWORD"] = source.password
    if not _SUPABASE.fullmatch(source.host):
        found["PS_JWT_SECRET"] = secrets.token_urlsafe(32)
    return found | {"PS_ADMIN_TOKEN": secrets.token_urlsafe(32)}


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
      sslmode: {source.sslmode}{_cacert(source)}

storage:
  type: sqlite              # a directory on this machine; postgresql for several processes or machines
  path: ./headwater-data

client_auth:
{_client_auth(source)}
port: 8080

sync_config:
  path: {RULES}

api:
  tokens: [!env PS_ADMIN_TOKEN]   # for operators, who have a port of their own: keep devices from it
  admin_port: 8081
"""


def _cacert(source: SourceSettings) -> str:
    if not source.cacert:
        return ""
    return "\n      cacert: |\n" + textwrap.indent(source.cacert.strip(), " " * 8)


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


def _scalar(text: str) -> str:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS
    return text if plain else json.dumps(text, ensure_ascii=False)
