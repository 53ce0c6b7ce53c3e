"""What a lake says about itself: its manifest, and the errors of a lake that can't be continued."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from headwater.errors import HeadwaterError

FORMAT: Final = 1


class LakeDirectoryError(HeadwaterError):
    """The directory can't be used for a lake."""

    code = "HW_5203"


class ForeignLakeError(HeadwaterError):
    """The lake is of another store, or of a later state of this one."""

    code = "HW_5204"


class DamagedLakeError(HeadwaterError):
    """Files of the lake are missing or changed."""

    code = "HW_5205"


class LakeFile(msgspec.Struct, frozen=True, array_like=True):
    """Size of a file."""

    rows: int
    bytes: int


class Snapshot(msgspec.Struct, frozen=True):
    """Current rows and buckets at one checkpoint, each in one file, named from the lake's directory on. `taken` is in
    seconds since 1970."""

    checkpoint: int
    taken: float
    definitions: tuple[str, ...]
    sources: Mapping[str, str]
    rows: str
    buckets: str


class Manifest(msgspec.Struct, frozen=True):
    """Which files are the lake. Ops up to `position` are in it; up to `checkpoint` they are what devices have at that
    checkpoint, in buckets of `definitions`. `sources` has the LSN up to which each source is included. `flush` is the
    commit time of the flush that ended at the checkpoint, as far as known (`HistoryReader.flushed_at`). `snapshots` has
    the newest last. Paths in `files` begin at the lake's directory."""

    format: int
    store: str
    checkpoint: int = 0
    position: int = 0
    flush: int | None = None
    definitions: tuple[str, ...] = ()
    sources: Mapping[str, str] = msgspec.field(default_factory=dict)
    snapshots: tuple[Snapshot, ...] = ()
    files: Mapping[str, LakeFile] = msgspec.field(default_factory=dict)


def encode(manifest: Manifest) -> bytes:
    """A manifest as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def decode(text: bytes, where: str) -> Manifest:
    """The inverse of `encode`. Raises DamagedLakeError, and LakeDirectoryError for a format of a newer version."""
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(f"the manifest can't be read: {error}", where) from error
    if manifest.format != FORMAT:
        what = f"the lake has format {manifest.format}, this version writes format {FORMAT}"
        raise LakeDirectoryError(what, where, "use the version of headwater that wrote it, or --reset")
    return manifest


def damaged(what: str, where: str) -> DamagedLakeError:
    """The error for a lake that is not as it was left."""
    return DamagedLakeError(what, where, "put the file back, or write the lake anew with --reset")
