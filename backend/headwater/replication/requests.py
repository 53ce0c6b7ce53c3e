"""Kinds of requests that commands submit to a replicator through the store."""

from __future__ import annotations

from enum import StrEnum


class RequestKind(StrEnum):
    """As the store keeps them. RESYNC and AUDIT have the payload `{"tables": ["public.todos", …]}`, which means all
    tables when the list is empty; an audit may say `"repair": true`. SKIP has `{"lsn": "0/1A2B3C"}`, as the error of
    the transaction names it. MOVE has `{"system_id": "7…", "database": 16384}`: that database may be followed in the
    former one's place. It stays open until the source's connection leads there."""

    RESYNC = "resync"
    AUDIT = "audit"
    SKIP = "skip"
    MOVE = "move"
