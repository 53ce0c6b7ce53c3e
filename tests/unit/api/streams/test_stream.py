"""A stream sends its lines in order and loses none, whoever sends them: its task, or the loop while the task rests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.api.streams import stream as stream_module
from headwater.api.streams.encoding import Batch, EncodedPiece
from headwater.api.streams.stream import StreamContext, SyncStream
from headwater.oplog.op import OpId
from headwater.sync.interest import News, anything


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn gives: how many pieces, whether the loop may send them, whether it changes what is watched if it
    resolves the request, whether its snapshot has changes of lookups, and how many commits come while it is read,
    handed over, and sent."""

    pieces: int
    small: bool
    interest: bool
    lookups: bool
    reading: int
    handed_over: int
    sending: int


@dataclass
class Scene:
    """A hub, a dialogue, threads and a sink, as one stream sees them."""

    turns: list[Turn]
    newest: int = 1
    sent: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    stream: SyncStream = field(init=False)

    # the dialogue
    interest: str = ""
    op_id: int = 1
    overtaken: bool = False
    left_out: tuple[()] = ()
    awaited: None = None
    write_key: str = "ann"
    config_id: int = 1
    is_open: bool = False
    operations: int = 0
    sent_bytes: int = 0
    waits_since: float | None = None
    left: list[EncodedPiece] = field(default_factory=list)
    resolves: bool = False

    @property
    def interruptible(self) -> bool:
        return not self.left

    def open(self) -> Batch:
        return Batch()

    def turn(self, news: News) -> Batch | None:
        assert self.resolves or not news.lookups
        if self.turns and self.turns[0].lookups and not news.lookups:
            return None
        turn = self.turns.pop(0) if self.turns else Turn(1, True, False, False, 0, 0, 0)
        self.op_id = self.newest
        self.commit(turn.reading)
        self.interest += "x" if turn.interest and news.lookups else ""
        self.current = turn
        names = [f"{self.op_id}.{number}" for number in range(turn.pieces)]
        self.made += names
        self.left = [EncodedPiece(name.encode() + (b"" if turn.small else b" large"), 1) for name in names]
        return self.more()

    def more(self) -> Batch:
        first, self.left = self.left[:1], self.left[1:]
        return Batch(tuple(first), 1, not self.left)

    # the hub
    def commit(self, count: int) -> None:
        for _ in range(count):
            self.newest += 1
            self.stream.notify(News(OpId(self.newest), lookups=self.newest % 3 == 0))

    def watch(self, stream: SyncStream, interest: object, op_id: int) -> None:
        if op_id < self.newest:
            stream.notify(anything(OpId(self.newest)))

    # the threads
    async def resolving(self, _: str, run: Callable[[], Batch | None]) -> Batch | None:
        await asyncio.sleep(0)
        self.resolves = True
        try:
            return run()
        finally:
            self.resolves = False

    async def shared(self, run: Callable[[], Batch | None]) -> Batch | None:
        await asyncio.sleep(0)
        return run()

    async def download(self, _: str, run: Callable[[], Batch | None]) -> Batch | None:
        return await self.shared(run)

    def soon(self, run: Callable[[], Batch | None], then: Callable[[Batch | None], None]) -> None:
        def hand_over() -> None:
            batch = run()
            then(batch)
            if batch is not None:
                self.commit(self.current.handed_over)

        asyncio.get_running_loop().call_soon(hand_over)

    # the sink
    async def send(self, piece: EncodedPiece) -> int:
        self.sent.append(piece.content.decode().split()[0])
        self.commit(self.current.sending)
        await asyncio.sleep(0)
        return len(piece)

    def offer(self, piece: EncodedPiece) -> int | None:
        if b"large" in piece.content:
            return None
        self.sent.append(piece.content.decode())
        return len(piece)

    async def end(self) -> None: ...

    async def fail(self, error: Exception) -> None:
        self.ended.append(f"cut off: {getattr(error, 'code', error)}")

    def stop(self) -> None: ...

    def on_disconnect(self, _: object) -> None: ...

    def delivered(self, *_: object) -> None: ...


class _Sink:
    """The scene as a sink: `open` has another meaning there."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    async def open(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scene, name)


def ignore(*_: object) -> None: ...


def stream_of(scene: Scene) -> SyncStream:
    user = SimpleNamespace(user_id="ann", expires_in=lambda: 1e6)
    client = SimpleNamespace(user=user, client_id="phone", user_agent="", app_metadata={}, log_names={})
    refusals = SimpleNamespace(note=ignore)
    traffic = SimpleNamespace(operations=0, refusals=refusals, sent=ignore, delivered=ignore, end=scene.ended.append)
    parts = cast("tuple[Any, Any, Any]", (scene, client, scene))
    return SyncStream(*parts[:2], StreamContext(scene, scene, cast("Any", traffic), 60.0))  # type: ignore[arg-type]


async def lived(scene: Scene) -> None:
    scene.stream = stream_of(scene)
    task = asyncio.create_task(scene.stream.run(cast("Any", _Sink(scene))))
    await asyncio.sleep(0)
    for _ in range(3):
        scene.commit(1)
        for _ in range(60):
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


_FEW = st.integers(0, 2)
_TURN = st.builds(Turn, st.integers(0, 3), st.booleans(), st.booleans(), st.booleans(), _FEW, _FEW, _FEW)


@settings(deadline=None)
@given(turns=st.lists(_TURN, max_size=6))
def test_lines_come_in_order_and_none_is_lost(turns: list[Turn]) -> None:
    scene = Scene(list(turns))
    asyncio.run(lived(scene))
    assert scene.sent == scene.made
    assert scene.op_id == scene.newest


def test_operations_are_those_that_were_sent() -> None:
    scene = Scene([])
    asyncio.run(lived(scene))
    assert scene.operations == len(scene.sent) > 0


def fails(*_: object) -> Any:
    raise RuntimeError("a bug")


async def failing(*_: object) -> None:
    raise RuntimeError("a bug")


async def ended(scene: Scene, act: Callable[[], Awaitable[None]]) -> list[str]:
    """How a stream ends that serves while `act` runs."""
    scene.stream = stream_of(scene)
    async with asyncio.timeout(10):
        task = asyncio.create_task(scene.stream.run(cast("Any", _Sink(scene))))
        for _ in range(5):
            await asyncio.sleep(0)
        scene.is_open = True
        await act()
        await task
    return scene.ended


CUT_OFF = ["cut off: a bug", "failed"]


def test_an_error_while_the_task_sleeps_ends_the_stream() -> None:
    scene = Scene([])
    scene.offer = fails  # type: ignore[method-assign, assignment]

    async def act() -> None:
        scene.commit(1)

    assert asyncio.run(ended(scene, act)) == CUT_OFF


def test_an_error_of_a_tick_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "next_tick", lambda *_: 0.01)
    scene = Scene([])
    scene.form = SimpleNamespace(piece=fails)  # type: ignore[attr-defined]
    assert asyncio.run(ended(scene, lambda: asyncio.sleep(0))) == CUT_OFF


def test_an_error_of_the_end_cuts_the_stream_off() -> None:
    scene = Scene([])
    scene.end = failing  # type: ignore[method-assign]

    async def act() -> None:
        scene.stream.end("shutting down")

    assert asyncio.run(ended(scene, act)) == CUT_OFF


@dataclass
class Stalled(Scene):
    """A client that reads nothing until `room` is set."""

    room: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, piece: EncodedPiece) -> int:
        self.waits_since = time.monotonic() - 100
        await self.room.wait()
        self.waits_since = None
        return len(piece)


LARGE = Turn(1, False, False, False, 0, 0, 0)


def test_an_ending_stream_waits_for_its_client_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "STUCK_SECONDS", 0.6)
    scene = Stalled([LARGE])
    scene.end = lambda: asyncio.sleep(60)  # type: ignore[method-assign]

    async def act() -> None:
        scene.commit(1)
        await asyncio.sleep(0.1)
        scene.stream.end("shutting down")
        asyncio.get_running_loop().call_later(0.5, scene.room.set)

    began = time.monotonic()
    assert asyncio.run(ended(scene, act)) == ["cut off: HW_6020", "shutting down, client not reading"]
    assert time.monotonic() - began < 1.1


def test_a_client_that_stalled_is_cut_off_even_if_it_reads_at_that_moment() -> None:
    scene = Stalled([LARGE])

    async def act() -> None:
        scene.commit(1)
        await asyncio.sleep(0.1)
        scene.room.set()
        scene.stream._on_tick()

    assert asyncio.run(ended(scene, act)) == ["cut off: HW_6020", "client not reading"]
