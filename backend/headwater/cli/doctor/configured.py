"""Checks the service config, the sync config, and the keys of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from headwater.api.auth.errors import JwksError
from headwater.api.auth.fetch import CHECK_ADDRESS, JwksClient
from headwater.cli.doctor.result import Level, Result, of_error, ok
from headwater.config.errors import ConfigError
from headwater.config.given import ConfigSource
from headwater.config.load import load_config
from headwater.config.model import ClientAuth, ServiceConfig
from headwater.insight.words import count
from headwater.source.catalog.schema import see_schema
from headwater_rules.compiler.compile import compile_config, findings_in
from headwater_rules.errors import Code, RuleErrors, Severity
from headwater_rules.plan import TablePattern

_SEE = "see docs/service-config.md"
_SEE_RULES = "see `headwater rules check`"


def check_config(
    configs: ConfigSource, environment: Mapping[str, str], directory: Path
) -> tuple[ServiceConfig | None, list[Result]]:
    """The service config, if it can be used."""
    try:
        config = load_config(configs, environment, directory)
    except ConfigError as error:
        return None, [
            Result(
                "config",
                Level.FAIL,
                f"{error.origin}: [{each.code}] {each.key or 'config'}: {each.what}",
                each.fix or _SEE,
            )
            for each in error.issues
        ]
    if not config.warnings:
        return config, [ok("config", "the service config is right")]
    return config, [Result("config", Level.WARN, each, _SEE) for each in config.warnings]


def check_rules(config: ServiceConfig) -> tuple[Sequence[TablePattern] | None, list[Result]]:
    """The tables that the sync config names; None when there is none in a file."""
    if config.sync_config is None:
        return None, [ok("rules", "no sync config in a file: it is deployed by `headwater rules deploy`")]
    where = config.sync_config.origin
    try:
        text = config.sync_text()
        compiled = compile_config(text)
    except ConfigError as error:
        return None, [Result("rules", Level.FAIL, str(error), "write the file, or correct sync_config.path")]
    except RuleErrors as errors:
        fix = config.sync_config.checked_by
        return None, [Result("rules", Level.FAIL, f"{where}: {each.message}", fix) for each in errors.errors]
    seen = see_schema(config.sources)
    found = [
        Result(
            "rules",
            Level.FAIL if each.severity is Severity.FATAL else Level.WARN,
            f"{where}: [{each.code.value}] {each.message}",
            each.suggestion or _SEE_RULES,
        )
        for each in findings_in(text, seen.schema, allow_missing=config.sync_config.allow_missing)
        if each.code is not Code.NOT_SENT  # the check of the source tells it, once for each table
    ]
    right = ok("rules", f"{where}: {count(len(compiled.plan.streams), 'stream')}; {seen.note}")
    return compiled.plan.tables(), found or [right]


def check_keys(auth: ClientAuth) -> Iterator[Result]:
    """Whether a token can be accepted at all, and whether published keys can be fetched."""
    if not auth.keys and not auth.addresses:
        fix = "set client_auth.jwks, client_auth.jwks_uri or client_auth.supabase"
        yield Result("tokens", Level.FAIL, "no keys of tokens are configured: every device is refused", fix)
        return
    own = (*(each.audience for each in auth.keys), *(each.audience for each in auth.addresses))
    if not auth.audience and not auth.issuers and not all(own):
        fix = "set client_auth.audience to what your tokens have as `aud`"
        yield Result("tokens", Level.FAIL, "no audience is configured: every token is refused", fix)
    if auth.keys:
        yield ok("tokens", f"{count(len(auth.keys), 'key')} in the config")
    for address in auth.addresses:
        try:
            found = asyncio.run(JwksClient(address, auth.rules).fetch())
        except JwksError as error:
            yield of_error("tokens", JwksError(error.what, error.where, CHECK_ADDRESS))
            continue
        if found.keys:
            yield ok("tokens", f"{count(len(found.keys), 'key')} at {address.shown}")
        else:
            why = f": {'; '.join(found.ignored)}" if found.ignored else ""
            yield Result("tokens", Level.FAIL, f"no usable key at {address.shown}{why}", "publish a public signing key")
