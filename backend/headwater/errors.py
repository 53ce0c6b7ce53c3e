"""The base class of our errors; what their codes mean is a table in headwater.codes.

Every error says what happened, where, and what to do, and carries a stable code: the published `PSYNC_…` code
where one exists, a `HW_…` code of our own elsewhere. A class of its own is for an error that somebody catches by name;
everything else is raised as `HeadwaterError(what, where, fix, code="HW_…")`, and its code says the rest. Errors are
picklable, because Spark ships them between processes, and never carry a cell value or a secret.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from headwater.codes import CODES, Kind


class HeadwaterError(Exception):
    """Base class of all our errors.

    `what` happened, `where` it happened (a file, a table, a setting), and the `fix`: what the reader can do about it.
    `code` is a key of CODES, which names the reaction; subclasses name it once for all their errors.
    """

    code: str = "HW_0000"

    def __init__(self, what: str, where: str = "", fix: str = "", *, code: str = "") -> None:
        super().__init__(what, where, fix)  # args are what pickle replays; the rest is in __dict__
        self.what = what
        self.where = where
        self.fix = fix
        if code:
            self.code = code

    @property
    def kind(self) -> Kind:
        """What the caller should do about it."""
        return CODES[self.code].kind if self.code in CODES else Kind.STOP

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        remedy = f"; {self.fix}" if self.fix else ""
        return f"[{self.code}] {self.what}{place}{remedy}"


class MachineError(HeadwaterError):
    """The machine refuses something that all work needs: room on a disk, a file, memory. The work itself is not at
    fault, and may succeed later."""

    code = "HW_1001"


_REMEDIES = {
    errno.ENOSPC: "free space on the disk",
    errno.EDQUOT: "free space on the disk, or raise its quota",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files (fs.file-max)",
    errno.EIO: "see the state of the disk, and the system's log",
    errno.EROFS: "make the file system writable again",
    errno.EACCES: "check owner and rights of the file",
    errno.EPERM: "check owner and rights of the file, and whether it is immutable",
    errno.ENOENT: "look for what removed the file",
    errno.ENOMEM: "give the process more memory",
}


def machine_error(error: BaseException) -> MachineError | None:
    """The MachineError for an OSError or MemoryError, also if that is the cause of `error`. None for all others."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError):
            return _of_system(seen)
        if isinstance(seen, MemoryError):
            return MachineError("there is not enough memory", fix=f"{_REMEDIES[errno.ENOMEM]}; {_AGAIN}")
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return None


def _of_system(error: OSError) -> MachineError:
    reason = error.strerror if error.errno is None else os.strerror(error.errno)
    remedy = _REMEDIES.get(error.errno or 0)
    return MachineError(
        f"the machine refuses: {reason or type(error).__name__}",
        os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else "",
        _AGAIN if remedy is None else f"{remedy}; {_AGAIN}",
    )


_AGAIN = "it is tried again"


@contextmanager
def machine_errors() -> Iterator[None]:
    """Turn OSError and MemoryError into MachineError, and leave all others as they are."""
    try:
        yield
    except HeadwaterError:
        raise
    except Exception as error:
        found = machine_error(error)
        if found is None:
            raise
        raise found from error
