"""`headwater doctor`: all checks in the order in which a reader mends things."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from headwater.cli.doctor.configured import check_config, check_keys, check_rules
from headwater.cli.doctor.machine import check_files, check_ports, check_spark
from headwater.cli.doctor.result import Level, Result
from headwater.cli.doctor.source import check_source, check_upload
from headwater.cli.doctor.store import check_store
from headwater.cli.source.status import hasty, standing_of
from headwater.config.given import ConfigSource
from headwater.config.model import ServiceConfig
from headwater.pipeline.settings import SparkSettings
from headwater.replication.health.model import State


def run(configs: ConfigSource, *, as_json: bool = False) -> int:
    """Look at everything and print it. Returns the exit code."""
    results = []
    for each in _results(configs):
        results.append(each)
        if not as_json:
            _print(each)
    counts = {level: sum(each.level is level for each in results) for level in Level}
    if as_json:
        click.echo(json.dumps({"ok": not counts[Level.FAIL], "results": [asdict(each) for each in results]}, indent=2))
    else:
        click.echo(", ".join(f"{count} {level}" for level, count in counts.items()))
    return 1 if counts[Level.FAIL] else 0


def _results(configs: ConfigSource) -> Iterator[Result]:
    config, found = check_config(configs, os.environ, Path.cwd())
    yield from found
    if config is None:
        yield from check_spark(SparkSettings())
        return
    yield from _of_service(hasty(config))


def _of_service(config: ServiceConfig) -> Iterator[Result]:
    tables, found = check_rules(config)
    yield from found
    yield from check_keys(config.auth)
    kept, found = check_store(config)
    yield from found
    yield from check_source(config, kept, tables)
    yield from check_upload(config.upload)
    yield from check_spark(config.spark)
    running = kept is not None and standing_of(config, kept, None).state is not State.STOPPED
    yield from check_ports(config, running=running)
    yield from check_files(config)


def _print(result: Result) -> None:
    click.echo(f"{result.level.value:<5} {result.area:<8} {result.what}")
    if result.level is not Level.OK and result.fix:
        click.echo(f"{'':<15}-> {result.fix}")
