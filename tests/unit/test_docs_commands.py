"""docs/commands.md names every command of `headwater`, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from headwater.cli.main import cli

COMMANDS = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
Names = tuple[str, ...]
"""A command by the names of its groups and its own."""


def commands(group: click.Group, groups: Names = ()) -> Iterator[Names]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*groups, name))
        else:
            yield (*groups, name)


def named(words: Sequence[str]) -> Names:
    """The command that a command line begins with. Raises KeyError when there is none."""
    command: click.Command = cli
    for count, word in enumerate(words):
        if not isinstance(command, click.Group):
            return tuple(words[:count])
        command = command.commands[word]
    assert not isinstance(command, click.Group), f"{words} is a group"
    return tuple(words)


def documented() -> Iterator[Names]:
    """In a row, what does not begin with `headwater` is in the same group as what comes before it."""
    for row in re.findall(r"^\| (`headwater .*?) \|", COMMANDS, re.MULTILINE):
        command: Names = ()
        for line in re.findall("`(.+?)`", row):
            words = line.split()
            command = named(words[1:] if words[0] == "headwater" else [*command[:-1], *words])
            yield command


def test_every_command_is_documented() -> None:
    assert set(documented()) == set(commands(cli))
