"""Postgres, Java and Node: finds those of the machine, or those in Python packages, and runs them.

Headwater is on no index, so that no name can be installed.
"""

from __future__ import annotations


def how_to_add(extra: str) -> str:
    """What to do for the packages of an extra of pyproject.toml."""
    return f"in a clone run `make install`; with a wheel: pip install 'PATH/TO/headwater-….whl[{extra}]'"
