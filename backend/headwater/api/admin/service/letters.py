"""Dead letters: uploaded transactions that could not be applied. Listed, shown, retried and discarded."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from headwater.api.admin.route import MOST_BYTES, MOST_SECONDS, NOT_FOUND, TOO_LARGE, InvalidAdminRequestError
from headwater.api.errors import ApiError
from headwater.errors import HeadwaterError
from headwater.source.upload.all_letters import AllLetters, UnclearLetterError, all_letters
from headwater.source.upload.errors import UploadRefusedError
from headwater.source.upload.letter_name import Letter
from headwater.source.upload.letters import DeadLetter
from headwater.source.upload.settings import UploadSettings

NO_LETTER, NO_RECORDS = "HW_6123", "HW_6120"
_TOLD = {NO_LETTER, NO_RECORDS}  # of the others the log tells, or the answer's 503

LetterId = Annotated[str, Meta(min_length=1, max_length=300, pattern=r"^[^\x00]*$")]
"""What a letter is called: its number, after its source if there are several."""

Result = TypeVar("Result")


class LettersRequest(Struct, frozen=True):
    """List letters after this one, and at most so many."""

    after: LetterId | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class LetterResponse(Struct, frozen=True):
    """A dead letter: the transaction of a user's client with the ops `first_op` to `last_op`, which was parked at
    `at` (seconds since 1970), was tried so many times, and was refused for the reason in `code` and `message`, at the
    op `op_id` if that is known. `message` may have a value of a row. `bytes` is the size on disk of what it holds."""

    id: str
    source: str | None
    user: str
    client: str
    first_op: int
    last_op: int
    at: float
    attempts: int
    code: str
    sqlstate: str | None
    message: str
    op_id: int | None
    bytes: int


class LettersResponse(Struct, frozen=True):
    """The letters that wait, oldest first; with several sources, those of each one after the other. With `more`, ask
    for those after the last one."""

    letters: tuple[LetterResponse, ...]
    more: bool


class LetterRequest(Struct, frozen=True):
    """A letter."""

    id: LetterId


class ShownLetterResponse(Struct, frozen=True):
    """A letter, and the changes in it as the device sent them."""

    letter: LetterResponse
    crud: msgspec.Raw


class LettersChosenRequest(Struct, frozen=True):
    """Letters."""

    ids: Annotated[tuple[LetterId, ...], Meta(min_length=1, max_length=100)]


class LetterOutcome(Struct, frozen=True):
    """What became of a letter: it was `applied` or `discarded`; it was `refused` again, or could not be tried
    (`failed`), and waits as before; or it was not there (`gone`). `code` and `message` say why. `late`: the time was
    over before its turn."""

    id: str
    outcome: str
    code: str | None = None
    message: str | None = None


_CHANGED = {"applied", "discarded", "refused"}


class LetterOutcomesResponse(Struct, frozen=True):
    """What became of each letter, in the order of the request."""

    results: tuple[LetterOutcome, ...]

    def changed(self) -> Mapping[str, object] | None:
        """How many had which outcome, for the list of changes. A letter that was refused again is changed: it was tried
        once more."""
        outcomes = Counter(each.outcome for each in self.results)
        return outcomes if outcomes.keys() & _CHANGED else None


class LettersHandler:
    """Reads and settles dead letters, with connections to the sources that each request opens for itself."""

    def __init__(self, settings: UploadSettings | None) -> None:
        self._settings = settings

    def letters(self, request: LettersRequest) -> LettersResponse:
        """List uploaded transactions that could not be applied, oldest first."""
        after = Letter(0) if request.after is None else _letter(request.after)
        found = self._run(lambda letters: letters.after(after, request.limit + 1))
        return LettersResponse(
            tuple(_response(*each) for each in found[: request.limit]), more=len(found) > request.limit
        )

    def letter(self, request: LetterRequest) -> ShownLetterResponse:
        """Show one of them with everything that the device sent."""
        named = _letter(request.id)
        name, letter, crud = self._run(lambda letters: letters.one(named))
        if len(crud) > MOST_BYTES // 2:
            what = f"the letter has {len(crud):,} bytes of changes"
            raise ApiError(what, fix="use `headwater upload show`", code=TOO_LARGE)
        return ShownLetterResponse(_response(name, letter), msgspec.Raw(crud.encode()))

    def retry(self, request: LettersChosenRequest) -> LetterOutcomesResponse:
        """Apply dead letters now, each as the user who sent it, with the claims of its token."""
        return self._each(request.ids, AllLetters.retry, "applied")

    def discard(self, request: LettersChosenRequest) -> LetterOutcomesResponse:
        """Give dead letters up, and delete their contents."""
        return self._each(request.ids, AllLetters.discard, "discarded")

    def _each(
        self, ids: Sequence[str], settle: Callable[[AllLetters, Letter], Awaitable[None]], done: str
    ) -> LetterOutcomesResponse:
        named = [(each, _letter(each)) for each in ids]
        until = time.monotonic() + MOST_SECONDS

        async def run(letters: AllLetters) -> tuple[LetterOutcome, ...]:
            found = []
            for name, letter in named:
                if time.monotonic() > until:
                    found.append(LetterOutcome(name, "late"))
                    continue
                try:
                    await settle(letters, letter)
                    found.append(LetterOutcome(name, done))
                except UploadRefusedError as refusal:
                    found.append(LetterOutcome(name, "refused", refusal.code, refusal.reason.message))
                except HeadwaterError as error:
                    gone = error.code == NO_LETTER and not isinstance(error, UnclearLetterError)
                    outcome = "gone" if gone else "failed"
                    found.append(LetterOutcome(name, outcome, error.code, str(error)))
            return tuple(found)

        return LetterOutcomesResponse(self._run(run))

    def _run(self, work: Callable[[AllLetters], Awaitable[Result]]) -> Result:
        settings = self._settings
        if settings is None:
            raise ApiError("uploads are not configured", fix="see docs/uploads.md", code=NOT_FOUND)

        async def run() -> Result:
            async with all_letters(settings) as letters:
                return await work(letters)

        try:
            return asyncio.run(run())
        except HeadwaterError as error:
            if error.code not in _TOLD:
                raise
            raise ApiError(error.what, fix=error.fix, code=NOT_FOUND) from None


def _letter(text: str) -> Letter:
    try:
        return Letter.named(text)
    except ValueError as error:
        raise InvalidAdminRequestError(str(error), fix="see /api/headwater/v1/letters") from None


def _response(name: Letter, letter: DeadLetter) -> LetterResponse:
    return LetterResponse(
        str(name),
        name.source or None,
        letter.sub,
        letter.client_id,
        letter.first_op,
        letter.last_op,
        letter.parked_at.timestamp(),
        letter.attempts,
        letter.code,
        letter.sqlstate or None,
        letter.message,
        letter.op_id,
        letter.stored,
    )
