"""`headwater init`: asks, proposes, writes the files, and says what comes next."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import click

from headwater.cli.init.files import CONFIG, SECRETS, check_absent, write_files
from headwater.cli.init.next_steps import print_next_steps
from headwater.config.errors import ConfigError, ConfigIssue
from headwater.config.given import ConfigSource
from headwater.config.review import review_config
from headwater.config.sources import source_of
from headwater.errors import HeadwaterError
from headwater.insight.words import count
from headwater.source.catalog.outline import read_outline
from headwater.source.connect import SourceSettings
from headwater_rules.compiler.compile import compile_config
from headwater_rules.describe.languages import Language
from headwater_rules.propose.outline import OutlinedTable
from headwater_rules.propose.propose import Proposal, propose


class NothingToProposeError(HeadwaterError):
    """The database has no such table, or none at all that the role can see."""

    code = "HW_8601"


def run(
    uri: str | None, directory: Path, *, users: str | None, languages: Sequence[Language], ask: bool, force: bool
) -> None:
    """Write the three files into `directory` and print what comes next. Without `ask`, a URI is needed."""
    check_absent(directory, force=force)
    if uri is None:
        if not ask or not sys.stdin.isatty():
            raise click.UsageError("give the database as --uri or HEADWATER_SOURCE_URI")
        uri = click.prompt("Database to sync, as postgresql://user:password@host:5432/database", type=str)
    source = _source(uri, ask=ask)
    tables = read_outline(source)
    proposal = _proposed(tables, source, users)
    click.echo(
        f"{source.address}: {count(len(tables), 'table')}, users in {proposal.people or 'no table that was found'}"
    )
    if ask and users is None and (named := _asked_users(proposal)) is not None:
        proposal = _proposed(tables, source, named)
    if ask and not click.confirm(f"Write headwater.yaml, sync.yaml and .env to {directory.resolve()}?", default=True):
        raise click.Abort
    plan = compile_config(proposal.text).plan
    kept = write_files(directory, source, proposal.text, force=force)
    print_next_steps(directory, source, proposal, plan, languages)
    for warning in review_config(ConfigSource(path=directory / CONFIG), os.environ, directory).warnings:
        click.echo(f"\nCAUTION: {warning}")
    if kept:
        click.echo(f"\n{SECRETS} was there and keeps its {', '.join(kept)}.")


def _source(uri: str, *, ask: bool) -> SourceSettings:
    source_of(uri, sslmode="disable")  # an error of its own for what urlsplit refuses with the password in its message
    query = parse_qs(urlsplit(uri).query)
    cacert = _authority(query.get("sslrootcert", [""])[-1])
    sslmode = query.get("sslmode", [""])[-1]
    if sslmode in {"", "prefer", "allow"}:  # which promise nothing
        sslmode = "disable" if _is_near(uri) and not cacert else "verify-full"
    source = source_of(uri, sslmode=sslmode, cacert=cacert)
    if source.password or not ask:
        return source
    password = click.prompt(f"Password of {source.user}, empty for none", default="", hide_input=True,
                            show_default=False)  # fmt: skip
    return source_of(uri, password=password, sslmode=sslmode, cacert=cacert)


def _authority(file: str) -> str | None:
    """The certificate in a file that the URI names, or for `system` none: that is what verifying begins with."""
    if file in {"", "system"}:
        return None
    try:
        return Path(file).expanduser().read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not PEM text"
        issue = ConfigIssue(f"{file} can't be read: {why}", "sslrootcert", fix="name the file with the PEM text")
        raise ConfigError("--uri", [issue]) from error


_THIS_MACHINE = ("host.docker.internal", "host.containers.internal")
"""What containers call it. Other names in .internal are those of clouds, and cross their networks."""


def _is_near(uri: str) -> bool:
    """Whether the host is this machine, or a name that only a network of one's own knows."""
    try:
        host = urlsplit(uri).hostname or ""
    except ValueError:
        return False
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return "." not in host or host in _THIS_MACHINE or host.endswith((".local", ".localhost"))


def _proposed(tables: Sequence[OutlinedTable], source: SourceSettings, users: str | None) -> Proposal:
    if not tables:
        fix = "check the database's name, or create its tables first"
        raise NothingToProposeError("there are no tables to sync", source.address, fix)
    proposal = propose(tables, users)
    if users is not None and proposal.people is None:
        names = ", ".join(sorted(each.shown for each in tables)[:20])
        raise NothingToProposeError(f"there is no table {users} with one key column", source.address, f"name {names}")
    return proposal


def _asked_users(proposal: Proposal) -> str | None:
    """The table that the developer names in place of the one that was found."""
    default = proposal.people or ""
    named: str = click.prompt("Table of users, whose ids your tokens carry as `sub`", default=default).strip()
    return named if named and named != default else None
