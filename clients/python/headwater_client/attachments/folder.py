"""The local folder of files. A file is there whole or not at all."""

from __future__ import annotations

import os
import re
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Final

from headwater_client.errors import FileError

_SUFFIX: Final = re.compile(r"\.\w{1,16}", re.ASCII)


class Folder:
    """Files by name, within one folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def name_of(attachment_id: str, filename: str) -> str:
        """What a file is called here: any id becomes a name that every system takes, and no two ids the same."""
        suffix = Path(filename).suffix
        return sha256(str(attachment_id).encode()).hexdigest() + (suffix if _SUFFIX.fullmatch(suffix) else "")

    def path(self, name: str) -> Path:
        """Where the file is. Raises `FileError` for a name that leads out of the folder."""
        if not name or name != Path(name).name or name in {".", ".."}:
            raise FileError(f"{name!r} is not the name of a file within {self._path}")
        return self._path / name

    def write(self, name: str, content: bytes) -> None:
        """Write the file, which nobody sees half-written, also not after a crash."""
        target = self.path(name)
        handle, draft = tempfile.mkstemp(dir=self._path, prefix=".draft-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(draft).replace(target)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise

    def read(self, name: str) -> bytes:
        return self.path(name).read_bytes()

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def remove(self, name: str) -> None:
        """Remove the file, if it is there."""
        self.path(name).unlink(missing_ok=True)

    def remove_drafts(self) -> None:
        """Remove what a crash left half-written."""
        for draft in self._path.glob(".draft-*"):
            draft.unlink(missing_ok=True)
