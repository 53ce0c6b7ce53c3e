"""`headwater upload list`, `show`, `retry` and `discard`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import click

from headwater.config.model import ServiceConfig
from headwater.source.upload.apply import Uploads
from headwater.source.upload.errors import Refused
from headwater.source.upload.letters import DeadLetter, DeadLetters


@asynccontextmanager
async def _letters(config: ServiceConfig) -> AsyncIterator[DeadLetters]:
    settings = config.uploads()
    uploads = Uploads(settings)
    try:
        yield DeadLetters(settings, uploads)
    finally:
        await uploads.close()


def list_letters(config: ServiceConfig, after: int, limit: int, *, as_json: bool) -> None:
    """Print the first `limit` dead letters with a number beyond `after`, without what they contain."""
    found = asyncio.run(_waiting(config, after, limit + 1))
    if len(found) > limit:
        found = found[:limit]
        click.echo(f"more wait: see --after {found[-1].id}", err=True)
    if as_json:
        click.echo(json.dumps([_facts(letter) for letter in found], indent=2))
        return
    if not found:
        click.echo("no dead letters wait" if not after else f"no dead letters after {after} wait")
    for letter in found:
        again = f", tried {letter.attempts} times" if letter.attempts > 1 else ""
        click.echo(f"{letter.id}  {letter.parked_at:%Y-%m-%d %H:%M:%S}  user {letter.sub}, ops {_ops(letter)}{again}")
        click.echo(f"    [{letter.code}] {letter.message}{'' if letter.op_id is None else f' (op {letter.op_id})'}")


def show_letter(config: ServiceConfig, number: int) -> None:
    """Print a dead letter with its payload. Raises UnknownLetter."""
    letter, crud = asyncio.run(_one(config, number))
    click.echo(json.dumps({**_facts(letter), "crud": json.loads(crud)}, indent=2))


def retry_letters(config: ServiceConfig, numbers: Sequence[int] | None) -> int:
    """Retry these dead letters, or all if None, each by itself. Returns the exit code: 1 when one is refused again."""
    return asyncio.run(_retry(config, numbers))


def discard_letters(config: ServiceConfig, numbers: Sequence[int]) -> None:
    """Discard these dead letters. Raises UnknownLetter at the first that does not wait."""
    asyncio.run(_discard(config, numbers))


async def _waiting(config: ServiceConfig, after: int, limit: int) -> list[DeadLetter]:
    async with _letters(config) as letters:
        return await letters.waiting(after, limit)


async def _one(config: ServiceConfig, number: int) -> tuple[DeadLetter, str]:
    async with _letters(config) as letters:
        return await letters.one(number)


async def _retry(config: ServiceConfig, numbers: Sequence[int] | None) -> int:
    code = 0
    async with _letters(config) as letters:
        async for number in _numbers(letters, numbers):
            try:
                await letters.retry(number)
                click.echo(f"{number}: applied")
            except Refused as refusal:
                click.echo(f"{number}: refused again: [{refusal.code}] {refusal.reason.message}", err=True)
                code = 1
    return code


async def _numbers(letters: DeadLetters, numbers: Sequence[int] | None) -> AsyncIterator[int]:
    """These numbers, or those of all that wait if None, a page at a time."""
    for number in numbers or ():
        yield number
    last = 0
    while numbers is None and (page := await letters.waiting(last)):
        for letter in page:
            yield (last := letter.id)


async def _discard(config: ServiceConfig, numbers: Sequence[int]) -> None:
    async with _letters(config) as letters:
        for number in numbers:
            await letters.discard(number)
            click.echo(f"{number}: discarded")


def _facts(letter: DeadLetter) -> dict[str, object]:
    return {
        "id": letter.id,
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


def _ops(letter: DeadLetter) -> str:
    return f"{letter.first_op}" if letter.first_op == letter.last_op else f"{letter.first_op} to {letter.last_op}"
