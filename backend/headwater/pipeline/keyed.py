"""Compares the rows of both sides of a table with key in one process, by their lines as they are: to make digests would
be most of the work.

What does not fit into memory is divided by key into shares, on disk, each of which does. Every row is read once.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Generic, TypeVar

from headwater.bulk.contract import Difference
from headwater.oplog.limits import is_stub, stored_line
from headwater.pipeline.compare import SOUND, StoredLine

Item = TypeVar("Item")
Row = TypeVar("Row", tuple[str, str], StoredLine)

_A_ROW = 200
"""About how many characters' worth of memory a row takes besides its key and line."""
_SHARES = 256
_WRITTEN_AT_ONCE = 16 << 20  # characters of all shares
_AT_ONCE = 5_000  # differences


class KeyedSides:
    """All rows of one table with key, those of the source first. `size` is about how many characters are in memory, and
    `twice` has the keys of several rows of the source."""

    def __init__(self) -> None:
        self._of_source: dict[str, str] = {}
        self._gone: list[tuple[str, str]] = []
        self.twice: set[str] = set()
        self.size = 0

    def of_source(self, keys: Sequence[str], lines: Sequence[str]) -> None:
        rows = self._of_source
        for key, line in zip(keys, lines, strict=True):
            if key in rows:
                self.twice.add(key)
            rows[key] = line
        self.size += sum(map(len, keys)) + sum(map(len, lines)) + _A_ROW * len(keys)

    def of_store(self, rows: Sequence[StoredLine]) -> None:
        found = self._of_source
        for key, line, mark in rows:
            wanted = found.get(key)
            if wanted is None:
                self._gone.append((key, line))
                self.size += len(key) + len(line) + _A_ROW
            elif mark == SOUND and (wanted == line or (is_stub(line) and is_stub(stored_line(wanted)))):
                del found[key]

    def differences(self, table: int) -> list[Difference]:
        """The rows that only one side has, or that have other values or flaws."""
        there = [Difference(table, key, line, 1) for key, line in self._of_source.items()]
        return there + [Difference(table, key, line, 0) for key, line in self._gone]

    def left(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """The rows of the source that the store is not known to have as they are, and those that only the store has."""
        return list(self._of_source.items()), list(self._gone)


class DividedSides:
    """The same for any number of rows: above `limit` characters, they go to files without a name in `directory`, which
    end with the process. Raises OSError, such as where the disk is full. To be closed."""

    def __init__(self, limit: int, directory: str) -> None:
        self._limit = limit
        self._directory = directory
        self._whole = KeyedSides()
        # Of the source, and of the store
        self._shares: tuple[_Shares[tuple[str, str]], _Shares[StoredLine]] | None = None
        self._found = _Lists[Difference](directory)
        self._places: list[int] = []  # of the differences
        self._in_memory: list[Difference] = []
        self.twice: set[str] = set()
        """After `compare`, the keys of several rows of the source."""
        self.count = 0
        """After `compare`, how many rows differ."""

    def of_source(self, keys: Sequence[str], lines: Sequence[str]) -> None:
        """Take in rows of the source."""
        if self._shares is not None:
            self._shares[0].add(zip(keys, lines, strict=True))
            return
        self._whole.of_source(keys, lines)
        if self._whole.size > self._limit:
            self._divide()

    def of_store(self, rows: Sequence[StoredLine]) -> None:
        """Take in rows of the store, after all of the source."""
        if self._shares is not None:
            self._shares[1].add(rows)
            return
        self._whole.of_store(rows)
        if self._whole.size > self._limit:
            self._divide()

    def _divide(self) -> None:
        """Go on in shares. What the store had before, and is not left, was equal."""
        self._shares = _Shares[tuple[str, str]](self._directory), _Shares[StoredLine](self._directory)
        self.twice |= self._whole.twice
        source, store = self._whole.left()
        self._shares[0].add(source)
        self._shares[1].add((key, line, SOUND) for key, line in store)
        self._whole = KeyedSides()

    def compare(self, table: int) -> None:
        """Find the differences, once all rows are there."""
        if self._shares is None:
            self._in_memory = self._take(self._whole, table)
            return
        of_source, of_store = self._shares
        for share in range(_SHARES):
            both = KeyedSides()
            for rows in of_source.of(share):
                both.of_source([key for key, _ in rows], [line for _, line in rows])
            for stored in of_store.of(share):
                both.of_store(stored)
            found = self._take(both, table)
            self._places += [self._found.add(found[at : at + _AT_ONCE]) for at in range(0, len(found), _AT_ONCE)]
        of_source.close()
        of_store.close()

    def _take(self, both: KeyedSides, table: int) -> list[Difference]:
        self.twice |= both.twice
        found = both.differences(table)
        self.count += len(found)
        return found

    def differences(self) -> Iterator[list[Difference]]:
        """What `compare` has found, some at a time."""
        yield self._in_memory
        yield from map(self._found.at, self._places)

    def close(self) -> None:
        """Remove what is on disk."""
        self._found.close()
        for shares in self._shares or ():
            shares.close()


class _Lists(Generic[Item]):
    """Lists in a file without a name, which is there from the first one on."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None

    def add(self, items: list[Item]) -> int:
        """Append a list. Returns its place."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - see `close`
        place = self._file.seek(0, os.SEEK_END)
        pickle.dump(items, self._file, pickle.HIGHEST_PROTOCOL)
        return place

    def at(self, place: int) -> list[Item]:
        assert self._file is not None
        self._file.seek(place)
        items: list[Item] = pickle.load(self._file)  # noqa: S301 - nobody else can open the file
        return items

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Shares(Generic[Row]):
    """Rows that begin with their keys, divided by the hash that Python has of these: another one in every process, so
    that nobody can choose keys that are all in one share."""

    def __init__(self, directory: str) -> None:
        self._lists: _Lists[Row] = _Lists(directory)
        self._places: list[list[int]] = [[] for _ in range(_SHARES)]
        self._waiting: list[list[Row]] = [[] for _ in range(_SHARES)]
        self._size = 0

    def add(self, rows: Iterable[Row]) -> None:
        waiting, size = self._waiting, self._size
        for row in rows:
            waiting[hash(row[0]) % _SHARES].append(row)
            size += len(row[0]) + len(row[1]) + _A_ROW
            if size > _WRITTEN_AT_ONCE:
                self._write()
                waiting, size = self._waiting, 0
        self._size = size

    def _write(self) -> None:
        for places, rows in zip(self._places, self._waiting, strict=True):
            if rows:
                places.append(self._lists.add(rows))
                rows.clear()

    def of(self, share: int) -> Iterator[list[Row]]:
        """All rows of a share, some at a time."""
        yield from map(self._lists.at, self._places[share])
        yield self._waiting[share]

    def close(self) -> None:
        self._lists.close()
