"""All kinds of hostile clients, each as often as there is something to find."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from tests.unit.api.hostile.conversation import Conversation, Credentials
from tests.unit.api.hostile.requests import HostileRequests
from tests.unit.api.hostile.sockets import HostileSockets


def conversations(
    seed: int, number: int, credentials: Credentials, left_out: frozenset[str] = frozenset()
) -> Iterator[Conversation]:
    """`number` conversations: the same for the same seed, but for the times in tokens. `left_out` are paths of admin
    routes that nobody asks."""
    chance = random.Random(seed)
    requests, sockets = HostileRequests(chance, credentials, left_out), HostileSockets(chance, credentials)
    kinds: dict[Callable[[], Conversation], int] = {
        requests.body: 22,
        requests.token: 8,
        requests.headers: 14,
        requests.address: 8,
        requests.framing: 8,
        requests.raw: 6,
        requests.noise: 1,
        requests.admin: 3,
        sockets.handshake: 4,
        sockets.messages: 7,
        sockets.frames: 10,
        sockets.requests: 9,
    }
    for make in chance.choices(list(kinds), list(kinds.values()), k=number):
        yield make()
