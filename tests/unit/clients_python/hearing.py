"""A store that is given what a session makes of a line."""

from __future__ import annotations

from headwater_client.protocol.lines import Line
from headwater_client.protocol.session import BeginCheckpoint, Finish, FinishOutcome, Save, StreamSession
from headwater_client.storage.store import DeviceStore


def hear_line(session: StreamSession, store: DeviceStore, line: Line, now: float = 0.0) -> FinishOutcome | None:
    """Have the store carry out what comes of a line. Returns the outcome of the checkpoint that it ended, if any."""
    outcome = None
    for instruction in session.receive(line):
        match instruction:
            case BeginCheckpoint():
                store.begin(instruction, include_defaults=True)
            case Save():
                store.save([instruction.data])
            case Finish():
                outcome = store.finish(instruction, now).outcome
            case _:
                pass
    return outcome
