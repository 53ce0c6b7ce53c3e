"""Where all find a store: by the name in its address."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

from headwater.storage.address import StoreAddress
from headwater.storage.contract.seal import sealed_error
from headwater.storage.contract.store import Lease, LeaseHeldError, LeaseLostError, StoreError
from headwater.storage.shared.common import is_gone, op_floor
from tests.support.dictionaries.state import Held, Page, State, copied
from tests.support.memory_store import SocketListener


@dataclass(frozen=True, slots=True)
class DictAddress:
    """A store in the memory of this process."""

    name: str
    one_machine = True
    kept_elsewhere = "memory that nobody has overwritten yet"

    def __str__(self) -> str:
        return self.name

    @property
    def known(self) -> StoreAddress:
        """As one that product code knows: its union has those of its own back ends alone."""
        return cast("StoreAddress", self)


class Kept:
    """A store where all find it: its newest state, parts of bulk jobs by name, and who waits for commits."""

    def __init__(self, state: State | None = None) -> None:
        self.state = state or State(secrets.token_bytes(16), op_floor(time.time()))
        self.parts: dict[str, list[Page]] = {}
        self._listeners: list[SocketListener] = []
        self._writing = threading.Lock()

    def begin(self, lease: Lease | None = None) -> State:
        """A state to be changed, by its holder where there is a lease; others wait until `commit` or `rollback`."""
        self._writing.acquire()
        try:
            if self.state.sealed is not None:
                raise sealed_error(self.state.sealed, "memory")
            if lease is not None:
                check(self.state, lease)
        except BaseException:
            self.rollback()
            raise
        return copied(self.state)

    def commit(self, state: State, lease: Lease | None = None) -> None:
        if lease is not None:
            state.leases[lease.name] = Held(lease.owner, lease.epoch, time.time() + lease.ttl)
        self.state = state
        self._writing.release()
        self._listeners = [listener for listener in self._listeners if listener.fileno() >= 0]
        for listener in self._listeners:
            listener.theirs.send(b"1")

    def rollback(self) -> None:
        self._writing.release()

    @contextmanager
    def changing(self, lease: Lease | None = None) -> Iterator[State]:
        """A transaction."""
        state = self.begin(lease)
        try:
            yield state
        except BaseException:
            self.rollback()
            raise
        self.commit(state, lease)

    def unseal(self) -> str | None:
        """Allow writes again, see `Backend.unseal`."""
        with self._writing:
            note, self.state = self.state.sealed, replace(self.state, sealed=None)
            return note

    def listen(self) -> SocketListener:
        self._listeners.append(SocketListener())
        return self._listeners[-1]

    # leases

    def acquire(self, name: str, owner: str, ttl: float) -> Lease:
        with self.changing() as state:
            held = state.leases.get(name, Held(owner, 0, 0.0))
            if held.owner != owner and held.expires > time.time() and not is_gone(held.owner):
                raise LeaseHeldError("another replicator is at work", f"source {name}", "stop it")
            state.leases[name] = Held(owner, held.epoch + 1, time.time() + ttl)
            state.next_op = max(state.next_op, op_floor(time.time()))
            return Lease(name, owner, held.epoch + 1, ttl)

    def renew(self, lease: Lease) -> None:
        with self.changing(lease):
            pass

    def release(self, lease: Lease) -> None:
        with self.changing() as state:
            if state.leases[lease.name].epoch == lease.epoch:
                state.leases[lease.name] = Held(lease.owner, lease.epoch, 0.0)


def check(state: State, lease: Lease) -> None:
    """Raises LeaseLostError."""
    if lease.name not in state.leases or state.leases[lease.name].epoch != lease.epoch:
        raise LeaseLostError("another replicator took over", f"source {lease.name}", "nothing was lost")


STORES: dict[str, Kept] = {}


@dataclass(frozen=True)
class Place:
    """Where a store is, or can be."""

    address: DictAddress

    @property
    def made(self) -> Kept:
        """The store there, made when there is none."""
        return STORES.setdefault(self.address.name, Kept())

    @property
    def kept(self) -> Kept:
        """The store there. Raises StoreError."""
        if self.address.name not in STORES:
            raise StoreError("there is no store", self.address.name, "make one")
        return STORES[self.address.name]

    @property
    def state(self) -> State:
        """As it is now."""
        return self.kept.state
