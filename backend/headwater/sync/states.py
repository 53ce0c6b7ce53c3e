"""What an open stream does next: a table of its states and of what may happen in each, and when it sends how long its
token is still valid. Pure.

Two drivers follow the table. The stream's task reads, sends and ends. While the client has everything, the task sleeps,
and callbacks do the same for a small change without waking it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, auto
from typing import Final


class StreamState(IntEnum):
    """READING: the task waits for the store. SENDING: the task sends, or is about to. RESTING: the client has
    everything, and the task sleeps. AHEAD: lines are being read while the task sleeps. ENDING: no more lines are read
    or sent but the last."""

    READING = auto()
    SENDING = auto()
    RESTING = auto()
    AHEAD = auto()
    ENDING = auto()


class StreamEvent(IntEnum):
    """NEWS: something changed that concerns the stream. LOOKUPS: the same, and its request has to be resolved again.
    READ: there are lines for the task to send. SENT: the client has everything. MORE: it has not, and the task reads
    on. TICK: it is time to send the client how long its token is valid. FULL: the client has no room now for what was
    offered. FAILED: what was done while the task sleeps has failed. END: the stream is to end normally. GONE: the
    client has disconnected."""

    NEWS = auto()
    LOOKUPS = auto()
    READ = auto()
    SENT = auto()
    MORE = auto()
    TICK = auto()
    FULL = auto()
    FAILED = auto()
    END = auto()
    GONE = auto()


class StreamAction(IntEnum):
    """NOTHING: the task gets to it by itself. READ_AHEAD: have lines read without the task. OFFER: send what takes no
    time. WAKE: wake the task. CHECK_CLIENT: see whether the client reads. INTERRUPT: interrupt the task, at a line
    boundary unless it is SENDING. LIMIT: interrupt it if it goes on for long."""

    NOTHING = auto()
    READ_AHEAD = auto()
    OFFER = auto()
    WAKE = auto()
    CHECK_CLIENT = auto()
    INTERRUPT = auto()
    LIMIT = auto()


_S, _E, _A = StreamState, StreamEvent, StreamAction

TRANSITIONS: Final[Mapping[StreamState, Mapping[StreamEvent, tuple[StreamState, StreamAction]]]] = {
    _S.READING: {
        _E.NEWS: (_S.READING, _A.NOTHING),
        _E.LOOKUPS: (_S.READING, _A.NOTHING),
        _E.READ: (_S.SENDING, _A.NOTHING),
        _E.TICK: (_S.READING, _A.NOTHING),
        _E.FAILED: (_S.READING, _A.NOTHING),  # the task is awake: what is wrong, it finds by itself
        _E.END: (_S.ENDING, _A.INTERRUPT),
        _E.GONE: (_S.ENDING, _A.INTERRUPT),
    },
    _S.SENDING: {
        _E.NEWS: (_S.SENDING, _A.NOTHING),
        _E.LOOKUPS: (_S.SENDING, _A.NOTHING),
        _E.MORE: (_S.READING, _A.NOTHING),
        _E.SENT: (_S.RESTING, _A.NOTHING),
        _E.TICK: (_S.SENDING, _A.CHECK_CLIENT),
        _E.FAILED: (_S.SENDING, _A.NOTHING),
        _E.END: (_S.SENDING, _A.LIMIT),
        _E.GONE: (_S.ENDING, _A.INTERRUPT),
    },
    _S.RESTING: {
        _E.NEWS: (_S.AHEAD, _A.READ_AHEAD),
        _E.LOOKUPS: (_S.SENDING, _A.WAKE),  # resolving waits its turn, which a callback can't
        _E.TICK: (_S.RESTING, _A.OFFER),
        _E.FULL: (_S.SENDING, _A.WAKE),
        _E.FAILED: (_S.SENDING, _A.WAKE),
        _E.END: (_S.ENDING, _A.INTERRUPT),
        _E.GONE: (_S.ENDING, _A.INTERRUPT),
    },
    _S.AHEAD: {
        _E.NEWS: (_S.AHEAD, _A.NOTHING),
        _E.LOOKUPS: (_S.AHEAD, _A.NOTHING),
        _E.READ: (_S.SENDING, _A.WAKE),
        _E.SENT: (_S.RESTING, _A.NOTHING),
        _E.TICK: (_S.AHEAD, _A.OFFER),
        _E.FULL: (_S.AHEAD, _A.NOTHING),
        _E.FAILED: (_S.SENDING, _A.WAKE),
        _E.END: (_S.ENDING, _A.INTERRUPT),
        _E.GONE: (_S.ENDING, _A.INTERRUPT),
    },
    _S.ENDING: {
        **dict.fromkeys(StreamEvent, (_S.ENDING, _A.NOTHING)),
        _E.GONE: (_S.ENDING, _A.INTERRUPT),
    },
}
"""The next state, and what to do. What is not in the table can't happen."""


KEEPALIVE = 20.0
"""Seconds between two signs of life, give or take `JITTER` of it, so that clients do not come in step."""
JITTER = 0.1

WARNING = 20.0
"""Seconds before a token's end at which the client is notified, so that it fetches the next one in time."""


def next_tick(expires_in: float, jitter: float) -> float:
    """Seconds until the next `token_expires_in`. `expires_in` is what the token has left, `jitter` in [-1, 1]."""
    regular = KEEPALIVE * (1 + JITTER * jitter)
    if expires_in > WARNING:
        return min(regular, expires_in - WARNING)
    return max(0.0, min(regular, expires_in))
