"""How modules lean on each other. That imports go down only is held by the contracts in pyproject.toml."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not within functions either, where it only shows when they run."""
    graph = grimp.build_graph("headwater", "headwater_rules", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
