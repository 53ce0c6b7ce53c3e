"""Keys and digests that a store makes with its secret.

Whoever writes a row, or asks for a bucket, chooses names and values. With a hash that he can compute himself, he could
choose two of them with one hash. So every hash that stands for a name or a value is keyed by the store's secret, which
nothing outside the store shows. https://www.rfc-editor.org/rfc/rfc7693#section-2.9
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Mapping

_63_BITS = 0x7FFFFFFFFFFFFFFF
_KNOWN_NAMES, _LONGEST_KNOWN = 1 << 12, 500
_number = int.from_bytes
_in_memory = hashlib.blake2b(key=os.urandom(32), digest_size=16)


def in_memory(text: bytes) -> int:
    """A digest of 128 bits that stands for a row or a name while a process goes through many. Other in every
    process."""
    return _hashed(_in_memory, text)


def _hashed(keyed: hashlib.blake2b, text: bytes) -> int:
    """The digest of a text, by a state that has taken the key in."""
    digest = keyed.copy()
    digest.update(text)
    return _number(digest.digest())


class StoreKeys:
    """Makes the keys and digests of one store.

    `secret` has at most 64 bytes. `moved` are the buckets, by name, that have another key than the hash of their name,
    because that key was taken. Executors get a copy.
    """

    __slots__ = ("_bucket", "_compared", "_content", "_entry", "_known", "_removal", "moved", "secret")

    def __init__(self, secret: bytes, moved: Mapping[str, int] | None = None) -> None:
        self.secret = secret
        self.moved = dict(moved or {})
        self._bucket = hashlib.blake2b(key=secret, digest_size=8, person=b"bucket")
        self._content = hashlib.blake2b(key=secret, digest_size=8, person=b"content")
        self._removal = hashlib.blake2b(key=secret, digest_size=4, person=b"removal")
        self._entry = hashlib.blake2b(key=secret, digest_size=8, person=b"entry")
        self._compared = hashlib.blake2b(key=secret, digest_size=8, person=b"compared")
        self._known: dict[str, int] = {}

    def __reduce__(self) -> tuple[type[StoreKeys], tuple[bytes, dict[str, int]]]:
        return StoreKeys, (self.secret, self.moved)

    def bucket(self, name: str) -> int:
        """The key under which the store keeps a bucket, 63 bits. Not its identity: two names may have the same hash,
        and the store then moves one of them."""
        key = self._known.get(name)
        if key is None:
            key = self.moved.get(name)
            if key is None:
                key = self.hashed_name(name)
            if len(name) <= _LONGEST_KNOWN:
                if len(self._known) >= _KNOWN_NAMES:
                    self._known.clear()
                self._known[name] = key
        return key

    def hashed_name(self, name: str) -> int:
        """The key of a bucket that was not moved."""
        return _hashed(self._bucket, name.encode()) & _63_BITS

    def content(self, table: str, object_id: str, data: str) -> int:
        """A digest of 63 bits over everything that a device gets of a row. Rows with equal digests are taken for equal;
        the low 32 bits are the checksum of the PUT."""
        digest = self._content.copy()  # not `_hashed`: this is done for every row
        digest.update(f"{table}\0{object_id}\0{data}".encode())
        return _number(digest.digest()) & _63_BITS

    def removal(self, table: str, object_id: str, subkey: str) -> int:
        """The checksum of a REMOVE, unsigned 32 bit."""
        return _hashed(self._removal, f"{table}\0{object_id}\0{subkey}".encode())

    def entry(self, text: str) -> int:
        """A digest of 64 bits over a row in a bucket, to be summed up."""
        return _hashed(self._entry, text.encode())

    def compared(self, text: str) -> int:
        """A digest of 63 bits over a row, or its key, that is compared with the source."""
        return _hashed(self._compared, text.encode()) & _63_BITS

    def all_compared(self, texts: Iterable[str]) -> bytes:
        """`compared` of many texts, as big-endian numbers of 64 bits whose first bit does not count."""
        digests, start = list[bytes](), self._compared.copy
        for text in texts:
            digest = start()
            digest.update(text.encode())
            digests.append(digest.digest())
        return b"".join(digests)

    def subkey(self, row_id: str) -> str:
        """A row id as text that does not reveal it, 96 bits."""
        digest = hashlib.blake2b(row_id.encode(), digest_size=12, key=self.secret).digest()
        return base64.urlsafe_b64encode(digest).decode()
