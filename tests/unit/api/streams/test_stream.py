"""A stream sends its lines in order and loses none, whoever sends them: its task, or the loop while the task rests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

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
    waits_since: None = None
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
    traffic = SimpleNamespace(operations=0, refusals=None, sent=ignore, delivered=ignore, end=ignore)
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
