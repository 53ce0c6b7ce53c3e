"""One source in a life: its setup, who writes to it, and how what devices show of it is judged."""

from __future__ import annotations

import random
from collections.abc import Mapping

from tests.storm.changes import Changes
from tests.storm.ledger import Ledger, differences
from tests.storm.plan import Plan
from tests.storm.setup import StormSetup
from tests.storm.tables import CROWDED, FRESH, LEDGER, SHOWN, USERS, Shown, State, shown_to, with_joined
from tests.storm.writers import Log, Writer

PACE = 0.015
_HEAVY_PACE = 0.2  # some 20 changes of large rows a second
_WRITER_SECONDS = 180.0


class StormFailed(AssertionError):
    """What a device saw, or the store has, is not what the source had."""


class Side:
    """`seed` is of all that happens on this side; `ledger` is that of the round; `base` is what is published of the
    source while nobody writes."""

    def __init__(self, setup: StormSetup, seed: str, plan: Plan, log: Log) -> None:
        self.setup = setup
        self._seed = seed
        self._plan = plan
        self._log = log
        self._changes = Changes(setup.source.dsn, random.Random(f"{seed} changes"), log, many=plan.many > 0)
        self.done = self._changes.done
        self.ledger = Ledger("")
        self.writers: list[Writer] = []
        self.base: State = {}

    @property
    def name(self) -> str:
        """Of the source."""
        return self.setup.name

    def lay_out(self) -> None:
        """Lay the tables out."""
        self.setup.lay_out(many=self._plan.many, heavy=self._plan.heavy > 0)

    def look(self) -> None:
        """Note what the source has, while nobody writes."""
        self.base, self._versions = self.setup.truth()

    def change(self) -> None:
        """Change a table."""
        self._changes.make(self.ledger)

    def begin_round(self, number: int, *, share: float = 1.0) -> None:
        """Make a new ledger, and writers that have not started, who do so much of what the plan says."""
        self.ledger = Ledger(f"{number}.")
        self.writers = self._new_writers(number, share) if share else []

    def wait_for_writers(self) -> None:
        """Until they are done."""
        for writer in self.writers:
            writer.join(_WRITER_SECONDS)
            if writer.failure is not None:
                raise writer.failure
            assert not writer.is_alive(), f"{writer.name} hangs"

    def _new_writers(self, number: int, share: float) -> list[Writer]:
        published = self.setup.published()
        paces = [(round(self._plan.transactions * share), PACE, False)] * self._plan.writers
        paces += [(round(self._plan.heavy * share), _HEAVY_PACE, True)] * (self._plan.heavy > 0)
        return [
            Writer(
                f"{number}.{place}",
                f"{self._seed} {number} {place}",
                self.setup.source.dsn,
                count,
                self.ledger,
                published,
                self._log,
                pace,
                heavy=heavy,
            )
            for place, (count, pace, heavy) in enumerate(paces)
        ]

    @property
    def tried(self) -> int:
        """How many transactions the writers have behind them."""
        return sum(writer.tried for writer in self.writers)

    def judge(self) -> None:
        """All that the device saw in the round was so. Raises StormFailed."""
        self._log(f"{len(self.ledger.sights)} checkpoints, {len(self.ledger.transactions)} transactions")
        self.fail_on(self.ledger.judge(self.base), "a checkpoint is not a state that the source had")
        self.fail_on(self.ledger.judge_versions(self._versions), "a device had what it was not given")

    def agree(self, shown: Mapping[str, Shown], what: str) -> None:
        """A device shows what the source had at the last look. Raises StormFailed."""
        for user in USERS:
            seen = {row: count for row, count in shown[user].items() if row[0] in SHOWN}
            wanted = shown_to(user, self.base, with_joined(self.base))
            self.fail_on(differences(wanted, seen), f"{what} of {user} does not show what the source has")

    def unrest(self, shown: Mapping[str, Shown]) -> list[str]:
        """What a device still lacks of what time brings by itself: transactions that grow old, and the refresh of the
        computed table."""
        own, found = shown[USERS[0]], list[str]()
        if any(table == FRESH for table, _ in own):
            found.append("has transactions that are long over in the window of new ones")
        if len(self.setup.fellows) == 1 and "guests" in self.base:
            seen = {row: count for row, count in own.items() if row[0] == CROWDED}
            found += differences(self.setup.crowded(), seen)
        return found

    def forget_transactions(self) -> None:
        """Remove the names of the round's transactions from the source."""
        self.setup.source.execute(f"delete from {LEDGER}")

    def fail_on(self, found: list[str], what: str) -> None:
        """Raise StormFailed if something was found."""
        if found:
            text = "\n  ".join([f"seed {self._seed}: {what}", *found])
            self._log(text)
            raise StormFailed(text)
