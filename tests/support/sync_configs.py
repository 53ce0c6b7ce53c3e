"""Sync configs that many tests share."""

from __future__ import annotations

import json
from collections.abc import Sequence


def auto_streams(**queries: str | Sequence[str]) -> str:
    """A sync config whose streams every client gets, each with one query or several."""
    lines = ["config: {edition: 3}", "streams:"]
    for name, query in queries.items():
        key = "query" if isinstance(query, str) else "queries"
        lines += [f"  {name}:", "    auto_subscribe: true", f"    {key}: {json.dumps(query)}"]
    return "\n".join(lines) + "\n"


NOTES = auto_streams(notes="SELECT * FROM notes")
OWN_NOTES = auto_streams(notes="SELECT * FROM notes WHERE owner = auth.user_id()")
NOTES_AND_OTHERS = auto_streams(all=["SELECT * FROM notes", "SELECT * FROM others"])
ITEMS = auto_streams(items="SELECT * FROM items")
OWN_ITEMS = auto_streams(items="SELECT * FROM items WHERE owner = auth.user_id()")
EVENTS = auto_streams(events="SELECT * FROM events")
