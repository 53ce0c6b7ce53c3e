"""A store that is given what a session makes of a line."""

from __future__ import annotations

from headwater_client.protocol.lines import Line
from headwater_client.protocol.session import Begin, Finish, Outcome, Save, StreamSession
from headwater_client.storage.store import Store


def hear_line(session: StreamSession, store: Store, line: Line, now: float = 0.0) -> Outcome | None:
    """Have the store carry out what comes of a line. Returns the outcome of the checkpoint that it ended, if any."""
    outcome = None
    for instruction in session.receive(line):
        match instruction:
            case Begin():
                store.begin(instruction, include_defaults=True)
            case Save():
                store.save([instruction.data])
            case Finish():
                outcome = store.finish(instruction, now).outcome
            case _:
                pass
    return outcome
