"""Fixtures for unit tests of sync rules. pytest loads this module wherever the package is installed, so it imports
nothing slow until a test needs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headwater_rules.plan import SyncPlan
    from headwater_rules.testing import RulesTest

_DEFAULT = "sync_rules.yaml"


def pytest_addoption(parser: pytest.Parser) -> None:
    described = f"sync config of the `sync_rules` fixture (default: {_DEFAULT})"
    parser.getgroup("headwater").addoption("--sync-rules", metavar="PATH", help=described)
    parser.addini("sync_rules", help=described, default=_DEFAULT)


@pytest.fixture(scope="session")
def sync_rules_plan(pytestconfig: pytest.Config) -> SyncPlan:
    """The configured sync config, compiled once. If it has errors, tests fail with all of them."""
    from headwater_rules.compiler.compile import compile_config
    from headwater_rules.errors import SyncConfigError

    path = _path(pytestconfig)
    try:
        return compile_config(path.read_text(encoding="utf-8")).plan
    except OSError as error:
        pytest.fail(f"the sync config cannot be read: {error}; set `sync_rules` in the pytest configuration", False)
    except SyncConfigError as errors:
        pytest.fail(f"{path}:\n{errors.render()}", pytrace=False)


@pytest.fixture
def sync_rules(sync_rules_plan: SyncPlan) -> RulesTest:
    """The configured sync config with an empty database."""
    from headwater_rules.testing import RulesTest

    return RulesTest(sync_rules_plan)


def _path(config: pytest.Config) -> Path:
    """The path, relative to the working directory if given on the command line, else to the configuration file."""
    given = config.getoption("--sync-rules")
    if given:
        return config.invocation_params.dir / str(given)
    base = config.inipath.parent if config.inipath else config.rootpath
    return base / str(config.getini("sync_rules"))
