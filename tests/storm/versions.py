"""Which versions of rows were given to whom, whatever changes of tables were made beside that."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping

from tests.storm.secrets import SECRET
from tests.storm.tables import KINDS, Version, Versions

MADE_BY_CHANGES = frozenset({"anew", "clean"})
"""The bodies of rows that changes of tables wrote, in no transaction that the ledger knows."""


class VersionsGiven:
    """What some committed state said of each row. Columns that change with the table are not looked at, nor is whether
    a row lacks columns, for those may be not published."""

    def __init__(self, base: Versions) -> None:
        self._given: defaultdict[tuple[str, str], list[Version]] = defaultdict(list)
        self._rooms: set[tuple[str, str]] = set()
        self.add(base)

    def add(self, versions: Versions) -> None:
        """Add what one transaction made of the rows it wrote."""
        for key, rows in versions.items():
            self._given[key] += rows
            if key[0] == "rooms":
                self._rooms.update((str(row.get("id")), str(row.get("owner"))) for row in rows)

    def note_shown(self, user: str, table: str, text: str) -> None:
        """Rooms that a change of their table gave to a user open the way to their guests, too."""
        if table == "rooms":
            fields = json.loads(text)
            if fields.get("body") in MADE_BY_CHANGES and fields.get("owner") == user:
                self._rooms.add((str(fields.get("id")), user))

    def fault(self, user: str, table: str, text: str) -> str:
        """What is wrong with a row that this user's device has; nothing if nothing is."""
        if table not in KINDS:
            return ""
        fields = json.loads(text)
        if KINDS[table].by_owner and fields.get("owner") != user:
            return f"{user} has {table} {text}, which is somebody else's"
        if fields.get("body") in MADE_BY_CHANGES:
            return ""
        made = self._given[table, str(fields["id"])]
        if "body" not in fields and not made and SECRET not in text:  # by a change, and the body is not published
            return ""
        if table == "guests" and (str(fields.get("room")), user) not in self._rooms:
            return f"{user} has {table} {text}, and never had that room"
        if not any(_fits(KINDS[table].known, fields, version) for version in made):
            return f"{user} has {table} {text}, which no transaction made"
        return ""


def _fits(known: tuple[str, ...], fields: Mapping[str, object], version: Version) -> bool:
    return all(version.get(name) == value for name, value in fields.items() if name in known)
