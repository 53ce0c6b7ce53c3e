"""The files that `headwater init` writes."""

from __future__ import annotations

import json
import re
import secrets
import tempfile
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from dotenv import dotenv_values

from headwater.cli.init.hosts import WRITER, Host
from headwater.cli.init.page import FOLDER
from headwater.config.document import ConfigError, ConfigIssue
from headwater.source.connect import SourceSettings
from headwater_rules.propose.routes import People
from headwater_rules.propose.sql import Writable, identifier, sql_name

_PLAIN = re.compile(r"[\w.~+/=@:%,-]+", re.ASCII)
_LITERAL = re.compile(r"(?:[^'\\\r\n]|\\[^'\\\r\n])*")
"""What means itself between single quotes: a backslash only before what it does not escape."""
_BARE = re.compile(r"[^\s'\"#$](?:[^#$\r\n]*[^\s#$])?")
"""What means itself without quotes: no comment, no variable, and nothing that is trimmed."""
_NOTE = "# Headwater reads this as it was given; Docker Compose, if it reads this file, does not.\n"


def dotenv_line(name: str, value: str) -> str:
    """`NAME=value`, with a comment above it where no form of it means the same to both."""
    if _PLAIN.fullmatch(value):
        return f"{name}={value}\n"
    if _LITERAL.fullmatch(value):
        return f"{name}='{value}'\n"
    if _BARE.fullmatch(value):
        return f"{name}={value}\n"
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"{_NOTE}{name}='{escaped}'\n"


CONFIG, RULES, SECRETS, POLICIES = "headwater.yaml", "sync.yaml", ".env", "policies.sql"
_ABOVE_SECRETS = "# Secrets, which headwater.yaml reads by !env. Keep this file out of version control.\n"
_PLAIN_SCALAR = re.compile(r"[A-Za-z_][\w.-]*")
_YAML_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


@dataclass(frozen=True, slots=True)
class InitSetup:
    """What the files say: the databases, each with its host if that is known, the sync config, and what devices may
    write."""

    sources: Mapping[SourceSettings, Host | None]
    rules: str
    writable: tuple[Writable, ...] = ()
    people: People | None = None

    @property
    def supabase(self) -> Host | None:
        """Supabase, where it hosts one of the databases, and so signs in the users."""
        return next((host for host in self.sources.values() if host is not None and host.name == "Supabase"), None)

    def role(self, source: SourceSettings) -> str:
        """The role that uploads write as in a database."""
        host = self.sources[source]
        return WRITER if host is None else host.role

    def writable_in(self, source: SourceSettings, *, secured: bool) -> list[Writable]:
        """The writable tables of a database that have policies already, or that have none."""
        own = [each for each in self.writable if each.table.tag == source.written_tag]
        return [each for each in own if each.table.secured == secured]

    def policies(self) -> dict[str, SourceSettings]:
        """The files of policies, each with the database that it is for."""
        wanted = [source for source in self.sources if self.writable_in(source, secured=False)]
        return {POLICIES if len(self.sources) == 1 else f"policies-{each.tag}.sql": each for each in wanted}


def check_absent(directory: Path, *, force: bool, page: bool = False) -> None:
    """Raises ConfigError when a config is there already, unless `force`. A `.env` may be: it is only added to."""
    names = (CONFIG, RULES, *([FOLDER] if page else []))
    there = [name for name in names if (directory / name).exists()]
    there += sorted(each.name for each in directory.glob("policies*.sql"))
    if there and not force:
        issue = ConfigIssue(f"{', '.join(there)} exists already", fix="pass --force to overwrite, or --directory")
        raise ConfigError(str(directory.resolve()), [issue])


def write_files(directory: Path, written: InitSetup) -> tuple[str, ...]:
    """Write the service config, the sync config, the secrets and the policies. Returns the names of secrets that were
    there already, and keep their values. Raises ConfigError when the files can't be written."""
    files = {CONFIG: config_text(written), RULES: written.rules}
    files |= {name: policies_text(written, source) for name, source in written.policies().items()}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        kept = _add_secrets((directory / SECRETS).resolve(), secrets_of(written.sources))
        for name, text in files.items():
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


def secrets_of(sources: Iterable[SourceSettings]) -> dict[str, str]:
    """What .env has: the passwords, and new secrets for tokens of devices and of operators."""
    found = {_password_name(source): source.password for source in sources if source.password}
    return found | {"PS_JWT_SECRET": secrets.token_urlsafe(32), "PS_ADMIN_TOKEN": secrets.token_urlsafe(32)}


def config_text(written: InitSetup) -> str:
    """The text of headwater.yaml, without secrets."""
    return f"""\
# What the keys mean: docs/service-config.md. `!env NAME` comes from the environment, or from .env beside this file.
replication:
  connections:
{"".join(map(_connection, written.sources))}
storage:
  type: sqlite              # a directory on this machine; postgresql for several processes or machines
  path: ./headwater-data

client_auth:
{_client_auth(written)}
port: 8080

sync_config:
  path: {RULES}

api:
  tokens: [!env PS_ADMIN_TOKEN]   # for operators, who have a port of their own: keep devices from it
  admin_port: 8081
{_upload(written)}"""


def _password_name(source: SourceSettings) -> str:
    tag = variable(source.written_tag)
    return f"PS_SOURCE_{tag}_PASSWORD" if tag else "PS_SOURCE_PASSWORD"


def variable(tag: str) -> str:
    """A tag as a part of the name of an environment variable."""
    return tag.upper().replace("-", "_")


def _connection(source: SourceSettings) -> str:
    tag = f"\n      tag: {_scalar(source.tag)}" if source.written_tag else ""
    password = f"\n      password: !env {_password_name(source)}" if source.password else ""
    return f"""\
    - type: postgresql{tag}
      hostname: {_scalar(source.host)}
      port: {source.port}
      database: {_scalar(source.database)}
      username: {_scalar(source.user)}{password}
      sslmode: {source.sslmode}{_cacert(source)}
"""


def _cacert(source: SourceSettings) -> str:
    if not source.cacert:
        return ""
    return "\n      cacert: |\n" + textwrap.indent(source.cacert.strip(), " " * 8)


def _client_auth(written: InitSetup) -> str:
    host = written.supabase
    if host is None:
        return f"""\
  audience: [{_scalar(next(iter(written.sources)).database)}]      # tokens name it as `aud`
  jwks:                     # what your backend signs tokens with; or jwks_uri: https://… of your identity provider
    keys:
      - {{kty: oct, alg: HS256, kid: main, k: !env PS_JWT_SECRET}}
"""
    if host.project is not None:
        keys = "  supabase: true            # the keys of this project; tokens of supabase.auth are accepted"
    else:
        at = "http://127.0.0.1:54321" if host.local else "https://YOUR-SUPABASE"
        keys = f"  jwks_uri: {at}/auth/v1/.well-known/jwks.json   # the keys of supabase.auth"
    return f"""\
{keys}
  audience: [authenticated]
  jwks:                     # for `headwater token`; take it out where others use the app
    keys:
      - {{kty: oct, alg: HS256, kid: development, k: !env PS_JWT_SECRET}}
"""


def _upload(written: InitSetup) -> str:
    if not written.writable:
        return ""
    role, *_ = (written.role(source) for source in written.sources)
    others = [source for source in written.sources if written.role(source) != role]
    lines = [
        "",
        "upload:                     # what devices may write, as this role, under the policies of your tables",
        f"  role: {role}",
        *(["  sources:"] if others else []),
        *(f"    {_scalar(source.tag)}: {{role: {written.role(source)}}}" for source in others),
        "  tables:                   # rows that name their user, and what belongs to those: add what is missing",
    ]
    for each in written.writable:
        lines.append(f"    {_scalar(each.name)}:")
        if each.table.tag:
            lines.append(f"      source: {_scalar(each.table.tag)}")
        if each.table.own_place != ("public", each.name):
            lines.append(f"      table: {_scalar('.'.join(each.table.own_place))}")
        lines.append(f"      columns: [{', '.join(map(_scalar, each.columns))}]")
        lines.append(f"      operations: [{', '.join(each.operations)}]{_why(each)}")
    return "\n".join(lines) + "\n"


def _why(each: Writable) -> str:
    lacking = {"insert", "update", "delete"} - {*each.operations}
    reasons = [
        "no insert: Postgres makes the id, or a value that devices lack" if "insert" in lacking else "",
        "no delete: rows of other tables would go with it" if "delete" in lacking else "",
    ]
    text = "; ".join(filter(None, reasons))
    return f"   # {text}" if text else ""


def policies_text(written: InitSetup, source: SourceSettings) -> str:
    """SQL that secures the tables of a database that devices may write to, for a person to read and run."""
    role = identifier(written.role(source))
    lines = [
        "-- Proposed by `headwater init`: an upload may write the rows of its user. Read it before you run it.",
        "-- Row-level security does not bind the owner of a table. Roles that neither own one of these tables nor have",
        "-- BYPASSRLS see none of its rows any more, until you make policies for them.",
        "DO $$ BEGIN",
        f"  CREATE ROLE {role} NOLOGIN;",
        "EXCEPTION WHEN duplicate_object THEN NULL;",
        "END $$;",
    ]
    people = written.people
    if people is not None and people.subject != people.key and people.table.tag == source.written_tag:
        columns = f"{identifier(people.key)}, {identifier(people.subject)}"
        lines.append(f"GRANT SELECT ({columns}) ON {sql_name(people.table)} TO {role};")
    for each in written.writable_in(source, secured=False):
        table = sql_name(each.table)
        lines += [
            "",
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;",
            f"CREATE POLICY headwater_writer ON {table} TO {role}",
            f"  USING ({each.policy});",
        ]
    return "\n".join(lines) + "\n"


def _scalar(text: str) -> str:
    plain = _PLAIN_SCALAR.fullmatch(text) and text.lower() not in _YAML_WORDS
    return text if plain else json.dumps(text, ensure_ascii=False)
