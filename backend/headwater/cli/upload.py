"""`headwater upload list`, `show`, `retry` and `discard`: uploaded transactions that could not be applied."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from headwater.cli.options import config_options, examples, load
from headwater.config import ConfigSource
from headwater.source.upload.letter_name import Letter

if TYPE_CHECKING:
    from headwater.source.upload.all_letters import AllLetters
    from headwater.source.upload.letters import DeadLetter

Result = TypeVar("Result")


class _LetterType(click.ParamType):  # type: ignore[type-arg]  # of which older versions have none
    name = "letter"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Letter:
        if isinstance(value, Letter):
            return value
        try:
            return Letter.named(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


LETTER = _LetterType()


@click.group()
def upload() -> None:
    """Show, retry or discard uploaded transactions that could not be applied."""


@upload.command("list", epilog=examples("headwater upload list -c headwater.yaml", "headwater upload list --json",
                                         "headwater upload list --after 120 --limit 20"))  # fmt: skip
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="List at most this many.")
@click.option("--after", type=LETTER, default=Letter(0), metavar="LETTER", help="List those after this one.")
def list_(configs: ConfigSource, as_json: bool, limit: int, after: Letter) -> None:
    """List the dead letters, oldest first: transactions that could not be applied, and why. Shows no values of rows,
    except those in messages of Postgres. With several sources, those of each one after the other."""
    found = _with_letters(configs, lambda letters: letters.after(after, limit + 1))
    if len(found) > limit:
        found = found[:limit]
        click.echo(f"more wait: see --after {found[-1][0]}", err=True)
    if as_json:
        click.echo(json.dumps([_facts(*each) for each in found], indent=2))
        return
    if not found:
        click.echo(f"no dead letters after {after} wait" if after.number else "no dead letters wait")
    for name, letter in found:
        ops = f"{letter.first_op}" if letter.first_op == letter.last_op else f"{letter.first_op} to {letter.last_op}"
        again = f", tried {letter.attempts} times" if letter.attempts > 1 else ""
        click.echo(f"{name}  {letter.parked_at:%Y-%m-%d %H:%M:%S}  user {letter.sub}, ops {ops}{again}")
        click.echo(f"    [{letter.code}] {letter.message}{'' if letter.op_id is None else f' (op {letter.op_id})'}")


@upload.command(epilog=examples("headwater upload show 12"))
@click.argument("letter", type=LETTER)
@config_options
def show(configs: ConfigSource, letter: Letter) -> None:
    """Show dead letter LETTER with everything that the device sent, as JSON."""
    name, found, crud = _with_letters(configs, lambda letters: letters.one(letter))
    click.echo(json.dumps({**_facts(name, found), "crud": json.loads(crud)}, indent=2))


@upload.command(epilog=examples("headwater upload retry 12 crm:13", "headwater upload retry --all"))
@click.argument("letters", type=LETTER, nargs=-1, metavar="LETTER…")
@click.option("--all", "every", is_flag=True, help="Retry all that wait, oldest first.")
@config_options
def retry(configs: ConfigSource, letters: tuple[Letter, ...], every: bool) -> None:
    """Apply dead letters now, each as the user who sent it, with the claims of its token.

    They overwrite what was written since, unless the table's conflict policy prevents it. The exit code is 1 when one
    is refused again; it then waits as before.
    """
    if every == bool(letters):
        raise click.UsageError("name dead letters, or --all")
    sys.exit(_with_letters(configs, lambda waiting: _retry(waiting, None if every else letters)))


@upload.command(epilog=examples("headwater upload discard 12"))
@click.argument("letters", type=LETTER, nargs=-1, required=True, metavar="LETTER…")
@config_options
def discard(configs: ConfigSource, letters: tuple[Letter, ...]) -> None:
    """Give dead letters up, and delete their contents."""
    _with_letters(configs, lambda waiting: _discard(waiting, letters))


def _with_letters(configs: ConfigSource, work: Callable[[AllLetters], Awaitable[Result]]) -> Result:
    """The result of `work` on the dead letters of all sources."""
    import asyncio

    from headwater.source.upload.all_letters import UnclearLetterError, all_letters

    settings = load(configs, warn=False).uploads()

    async def run() -> Result:
        async with all_letters(settings) as letters:
            return await work(letters)

    try:
        return asyncio.run(run())
    except UnclearLetterError as error:
        raise click.UsageError(f"{error.what}: {error.fix}") from None


async def _retry(letters: AllLetters, named: Sequence[Letter] | None) -> int:
    """Retry these dead letters, or all if None, each by itself. Returns the exit code: 1 when one is refused again."""
    from headwater.source.upload.errors import UploadRefusedError

    code = 0
    async for letter in letters.named(named):
        try:
            await letters.retry(letter)
            click.echo(f"{letter}: applied")
        except UploadRefusedError as refusal:
            click.echo(f"{letter}: refused again: [{refusal.code}] {refusal.reason.message}", err=True)
            code = 1
    return code


async def _discard(letters: AllLetters, named: Sequence[Letter]) -> None:
    async for letter in letters.named(named):
        await letters.discard(letter)
        click.echo(f"{letter}: discarded")


def _facts(name: Letter, letter: DeadLetter) -> dict[str, object]:
    return {
        "id": str(name) if name.source else letter.id,
        "parked_at": letter.parked_at.isoformat(),
        "user": letter.sub,
        "client_id": letter.client_id,
        "first_op": letter.first_op,
        "last_op": letter.last_op,
        "attempts": letter.attempts,
        "code": letter.code,
        "sqlstate": letter.sqlstate or None,
        "message": letter.message,
        "op_id": letter.op_id,
        "stored_bytes": letter.stored,
    }
