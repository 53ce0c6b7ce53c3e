"""What the scheduler needs from a bulk job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass

from headwater.bulk.contract import JobKind


@dataclass(frozen=True, slots=True)
class Ending:
    """What a finished job leaves to the scheduler. `follow`: the stream has to be followed by other plans or tables
    now. `changed`: oids of tables that a comparison could not finish, since they changed meanwhile; None when the job
    was no comparison. `equal`: oids of tables that the comparison made equal to the source."""

    follow: bool = False
    changed: frozenset[int] | None = None
    equal: Collection[int] = ()


class Job(ABC):
    """Bulk work in small steps. All methods are called between flushes: `step` until it returns True, then `close` and
    `finish`. A job that is cut short is only closed."""

    @property
    @abstractmethod
    def kind(self) -> JobKind:
        """The kind under which failed attempts are counted."""

    @abstractmethod
    def step(self) -> bool:
        """Do a bit of the work. Returns True when all is done."""

    @abstractmethod
    def describe(self) -> str:
        """How far the job is, for a person."""

    @abstractmethod
    def close(self) -> None:
        """Release everything, at the end or in the middle."""

    def tables_changed(self, oids: frozenset[int]) -> bool:
        """The catalog describes these tables differently now. Returns whether the job goes on; else it is closed, and
        begun again later."""
        del oids
        return False

    def finish(self) -> Ending:
        """Store what the whole job achieved."""
        return Ending()

    def result(self) -> dict[str, object] | None:
        """The answer to the request that asked for the job. None when there is none, or not yet."""
        return None
