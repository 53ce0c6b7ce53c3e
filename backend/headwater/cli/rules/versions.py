"""`headwater rules deploy | versions | rollback | show`: versions of the sync config in a running service."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import click

from headwater.cli.config import ServiceConfig
from headwater.cli.existing_store import existing_store, find, served, when
from headwater.cli.options import to_json
from headwater.cli.progress import WaitDisplay, polled
from headwater.cli.rules.sync_config import compile_rules, read_text, wrong_rules
from headwater.errors import HeadwaterError
from headwater.insight.diff import compared, of_source
from headwater.source.catalog.schema import see_schema
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.versions import ConfigVersion, Origin, VersionState
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.compiler.compile import findings_in
from headwater_rules.errors import RuleCode, SyncConfigError
from headwater_rules.plan import SyncPlan
from headwater_rules.versions import check_names

_NO_REPLICATOR = "no replicator is running; the version is processed once one does (`headwater serve`)"


def deploy(
    config: ServiceConfig,
    file: Path,
    *,
    wait: bool,
    force: bool = False,
    allow_missing: bool = False,
    message: str = "",
) -> None:
    """Deploy a sync config, and wait until devices are served it. Deploys nothing and raises WrongRulesError if it
    does not compile or, unless `allow_missing` is set, names what the source lacks where it decides who gets rows; and
    HW_8105 if it names tables whose rows can't be replicated, unless `force` is set."""
    text = read_text(file)
    seen = see_schema(config.sources, text)
    click.echo(f"note: {seen.note}", err=True)
    with wrong_rules(str(file)):
        compiled, findings = compared(text, seen.schema, allow_missing=allow_missing, advise=True)
    for warning in findings:
        click.echo(warning.render(), err=True)
    with existing_store(config) as store:
        _refuse_clashes(store, compiled.plan, str(file))
        if any(each.code is RuleCode.NOT_SENT for each in findings) and not force:
            fix = "run the statements above, or deploy it anyway with --force"
            raise HeadwaterError("it names tables whose rows can't be replicated", str(file), fix, code="HW_8105")
        _deploy(store, config, text, message, wait=wait)


def rollback(config: ServiceConfig, number: int | None, *, wait: bool) -> None:
    """Deploy the text of an earlier version again: the one with this id, or the one served before the current one."""
    with existing_store(config) as store:
        versions = store.versions()
        chosen = _before(versions) if number is None else find(versions, number)
        origin = f"version {chosen.id}"
        _refuse_clashes(store, compile_rules(chosen.yaml, origin).plan, origin)
        _print_lacking(config, chosen.yaml)
        click.echo(f"going back to the text of {origin}")
        _deploy(store, config, chosen.yaml, f"back to {origin}", wait=wait)


def _before(versions: Sequence[ConfigVersion]) -> ConfigVersion:
    now = served(versions)
    texts = {now.yaml} if now else set()
    earlier = [version for version in versions if version.activated > 0 and version.yaml not in texts]
    if not earlier:
        raise HeadwaterError(
            "no other version was served before", fix="choose one: `headwater rules rollback ID`", code="HW_8102"
        )
    return max(earlier, key=lambda version: (version.activated, version.id))


def _print_lacking(config: ServiceConfig, text: str) -> None:
    """Print what the source lacks of what a sync config names."""
    seen = see_schema(config.sources, text)
    for finding in of_source(findings_in(text, seen.schema, allow_missing=True)):
        click.echo(finding.render(), err=True)
    click.echo(f"note: {seen.note}", err=True)


def _refuse_clashes(store: StoreWriter, plan: SyncPlan, origin: str) -> None:
    try:
        check_names(plan, store.known_definitions())
    except SyncConfigError as error:
        raise HeadwaterError(error.errors[0].message, origin, error.errors[0].suggestion, code="HW_8103") from error


def _deploy(store: StoreWriter, config: ServiceConfig, text: str, message: str, *, wait: bool) -> None:
    version = store.deploy(text, Origin.COMMAND, message=message)
    if version.state is VersionState.ACTIVE:
        click.echo(f"version {version.id} has this text and is already served")
        return
    click.echo(f"version {version.id} is deployed")
    with contextlib.closing(open_store(config.storage).open_reader()) as reader:
        if not wait:
            if not reader.replicator_alive():
                click.echo(f"note: {_NO_REPLICATOR}", err=True)
            return
        _wait(store, reader, version.id)


def _wait(store: StoreWriter, reader: StoreReader, number: int) -> None:
    """Wait until a version is served. Raises HW_8103 when it will not be."""
    started = time.monotonic()
    stays = f"version {number} stays deployed and continues without this command; see `headwater rules versions`"
    with WaitDisplay(stays) as display:
        for version in polled(lambda: find(store.versions(), number)):
            match version.state:
                case VersionState.PROCESSING:
                    activity = version.note or "its new rows are being prepared"
                    display.say(activity if reader.replicator_alive() else _NO_REPLICATOR)
                case VersionState.ACTIVE:
                    break
                case VersionState.FAILED | VersionState.STOPPED as state:
                    ended = "failed" if state is VersionState.FAILED else "was stopped"
                    fix = "devices are served as before; see `headwater rules versions`"
                    raise HeadwaterError(f"version {number} {ended}: {version.note}", fix=fix, code="HW_8103")
    click.echo(f"version {number} is served now ({time.monotonic() - started:.1f} s)")


def list_versions(config: ServiceConfig, *, as_json: bool) -> None:
    """Print all versions, newest first."""
    with existing_store(config) as store:
        versions = sorted(store.versions(), key=lambda version: version.id, reverse=True)
    if as_json:
        click.echo(to_json([_as_dict(version) for version in versions]))
        return
    if not versions:
        click.echo("no version yet: `headwater serve` deploys the sync config of the service config")
    for version in versions:
        times = [("deployed", version.created), ("served", version.activated), ("stopped", version.stopped)]
        history = "".join(f"  {word} {when(seconds)}" for word, seconds in times if seconds)
        note = f"\n{'':6}{version.note}" if version.note else ""
        said = f"\n{'':6}“{version.message}”" if version.message else ""
        who = f" ({version.author})" if version.author else ""
        click.echo(
            f"{version.id:>4}  {version.state.value:<10}  by {version.origin.value:<7}{who}{history}{said}{note}"
        )


def _as_dict(version: ConfigVersion) -> dict[str, object]:
    return {
        "id": version.id,
        "state": version.state.value,
        "origin": version.origin.value,
        "created": version.created,
        "activated": version.activated or None,
        "stopped": version.stopped or None,
        "note": version.note or None,
        "author": version.author or None,
        "message": version.message or None,
    }


def show(config: ServiceConfig, number: int | None) -> None:
    """Print the text of a version, by default of the served one."""
    with existing_store(config) as store:
        versions = store.versions()
    version = served(versions) if number is None else find(versions, number)
    if version is None:
        raise HeadwaterError("no version is served yet", fix="see `headwater rules versions`", code="HW_8102")
    click.echo(version.yaml, nl=not version.yaml.endswith("\n"))
