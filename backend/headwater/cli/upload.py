"""`headwater upload list`, `show`, `retry` and `discard`: uploaded transactions that could not be applied."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from headwater.cli.options import config_options, examples, load
from headwater.config import ConfigSource

if TYPE_CHECKING:
    from headwater.source.upload.letters import DeadLetter, DeadLetters

    Letters = Mapping[str, DeadLetters]  # by source, and by "" where there is only one

Result = TypeVar("Result")


class Letter(NamedTuple):
    """A dead letter as an operator names it: its number, after its source if there are several."""

    number: int
    source: str = ""

    def __str__(self) -> str:
        return f"{self.source}:{self.number}" if self.source else str(self.number)


class _LetterType(click.ParamType):  # type: ignore[type-arg]  # of which older versions have none
    name = "letter"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Letter:
        if isinstance(value, Letter):
            return value
        source, _, number = str(value).rpartition(":")
        if not number.isdecimal() or len(number) > 18:
            self.fail(f"{value!r} is not the number of a dead letter, such as 12 or crm:12", param, ctx)
        return Letter(int(number), source)


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
    found = _with_letters(configs, lambda letters: _listed(letters, after, limit + 1))
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
    name, found, crud = _with_letters(configs, lambda letters: _shown(letters, letter))
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


def _with_letters(configs: ConfigSource, work: Callable[[Letters], Awaitable[Result]]) -> Result:
    """The result of `work` on the dead letters of each source."""
    import asyncio

    from headwater.source.upload.letters import DeadLetters
    from headwater.source.upload.routing import RoutedUploads

    settings = load(configs, warn=False).uploads()

    async def run() -> Result:
        routed = RoutedUploads(settings)
        letters = {name if settings.targets else "": DeadLetters(settings, routed, name) for name in routed.by_source}
        try:
            return await work(letters)
        finally:
            await routed.close()

    return asyncio.run(run())


async def _meant(letters: Letters, letter: Letter) -> Letter:
    """That letter with its source. A number alone will do where only one source has such a letter. Raises UsageError,
    and HW_6123 when none has."""
    from headwater.source.upload.letters import unknown_letter

    if letter.source in letters:
        return letter
    if letter.source or "" in letters:
        known = ", ".join(f"{name}:…" if name else "numbers" for name in letters)
        raise click.UsageError(f"no source has the letter {letter}; here are: {known}")
    pages = {name: await each.waiting(letter.number - 1, 1) for name, each in letters.items()}
    found = [Letter(letter.number, name) for name, page in pages.items() if page and page[0].id == letter.number]
    if len(found) > 1:
        raise click.UsageError(f"several sources have a letter {letter}: name one of {', '.join(map(str, found))}")
    if not found:
        raise unknown_letter(letter.number)
    return found[0]


async def _shown(letters: Letters, letter: Letter) -> tuple[Letter, DeadLetter, str]:
    meant = await _meant(letters, letter)
    return meant, *await letters[meant.source].one(meant.number)


async def _listed(letters: Letters, after: Letter, limit: int) -> list[tuple[Letter, DeadLetter]]:
    """The first so many letters after that one."""
    found: list[tuple[Letter, DeadLetter]] = []
    sources = list(letters)
    if after.number:
        after = await _meant(letters, after)
        sources = sources[sources.index(after.source) :]
    for source in sources:
        beyond = after.number if source == after.source else 0
        if len(found) < limit:
            page = await letters[source].waiting(beyond, limit - len(found))
            found += [(Letter(letter.id, source), letter) for letter in page]
    return found


async def _retry(letters: Letters, named: Sequence[Letter] | None) -> int:
    """Retry these dead letters, or all if None, each by itself. Returns the exit code: 1 when one is refused again."""
    from headwater.source.upload.errors import UploadRefusedError

    code = 0
    async for letter in _named(letters, named):
        try:
            await letters[letter.source].retry(letter.number)
            click.echo(f"{letter}: applied")
        except UploadRefusedError as refusal:
            click.echo(f"{letter}: refused again: [{refusal.code}] {refusal.reason.message}", err=True)
            code = 1
    return code


async def _named(letters: Letters, named: Sequence[Letter] | None) -> AsyncIterator[Letter]:
    """These, or all that wait if None, a page at a time."""
    for letter in [await _meant(letters, each) for each in named or ()]:
        yield letter
    for source in letters if named is None else ():
        last = 0
        while page := await letters[source].waiting(last):
            for each in page:
                last = each.id
                yield Letter(last, source)


async def _discard(letters: Letters, named: Sequence[Letter]) -> None:
    for letter in [await _meant(letters, each) for each in named]:
        await letters[letter.source].discard(letter.number)
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
