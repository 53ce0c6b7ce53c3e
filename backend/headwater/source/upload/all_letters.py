"""The dead letters of all sources, by the names that operators give them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from headwater.errors import HeadwaterError
from headwater.source.upload.letter_name import Letter
from headwater.source.upload.letters import DeadLetter, DeadLetters, unknown_letter
from headwater.source.upload.routing import RoutedUploads
from headwater.source.upload.settings import UploadSettings


class UnclearLetterError(HeadwaterError):
    """Several sources have a letter with this number, or no source of this name has any."""

    code = "HW_6123"


class AllLetters:
    """Dead letters by source; with one source alone, by their numbers."""

    def __init__(self, settings: UploadSettings, routed: RoutedUploads) -> None:
        self.by_source = {
            name if settings.targets else "": DeadLetters(settings, routed, name) for name in routed.by_source
        }

    async def meant(self, letter: Letter) -> Letter:
        """That letter with its source. A number alone will do where only one source has such a letter. Raises
        UnclearLetterError, and HW_6123 when none has."""
        if letter.source in self.by_source:
            return letter
        if letter.source or "" in self.by_source:
            known = ", ".join(f"{name}:…" if name else "numbers" for name in self.by_source)
            raise UnclearLetterError(f"no source has the letter {letter}"[:200], fix=f"here are: {known}")
        pages = {name: await each.waiting(letter.number - 1, 1) for name, each in self.by_source.items()}
        found = [Letter(letter.number, name) for name, page in pages.items() if page and page[0].id == letter.number]
        if len(found) > 1:
            fix = f"name one of {', '.join(map(str, found))}"
            raise UnclearLetterError(f"several sources have a letter {letter}", fix=fix)
        if not found:
            raise unknown_letter(letter.number)
        return found[0]

    async def after(self, letter: Letter, limit: int) -> list[tuple[Letter, DeadLetter]]:
        """The first so many letters after that one: those of each source one after the other. Raises what `meant`
        raises unless the number is 0, which is before all."""
        found: list[tuple[Letter, DeadLetter]] = []
        sources = list(self.by_source)
        if letter.number:
            letter = await self.meant(letter)
            sources = sources[sources.index(letter.source) :]
        for source in sources:
            beyond = letter.number if source == letter.source else 0
            if len(found) < limit:
                page = await self.by_source[source].waiting(beyond, limit - len(found))
                found += [(Letter(each.id, source), each) for each in page]
        return found

    async def one(self, letter: Letter) -> tuple[Letter, DeadLetter, str]:
        """A letter with its name, and its entries as JSON. Raises HW_6123."""
        meant = await self.meant(letter)
        return meant, *await self.by_source[meant.source].one(meant.number)

    async def retry(self, letter: Letter) -> None:
        """See `DeadLetters.retry`."""
        meant = await self.meant(letter)
        await self.by_source[meant.source].retry(meant.number)

    async def discard(self, letter: Letter) -> None:
        """See `DeadLetters.discard`."""
        meant = await self.meant(letter)
        await self.by_source[meant.source].discard(meant.number)

    async def named(self, letters: Sequence[Letter] | None) -> AsyncIterator[Letter]:
        """These with their sources, or all that wait if None, a page at a time."""
        for letter in [await self.meant(each) for each in letters or ()]:
            yield letter
        for source in self.by_source if letters is None else ():
            last = 0
            while page := await self.by_source[source].waiting(last):
                for each in page:
                    last = each.id
                    yield Letter(last, source)


@asynccontextmanager
async def all_letters(settings: UploadSettings) -> AsyncIterator[AllLetters]:
    """The dead letters of all sources, with connections of their own while the context is open."""
    routed = RoutedUploads(settings)
    try:
        yield AllLetters(settings, routed)
    finally:
        await routed.close()
