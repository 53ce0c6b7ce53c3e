"""Chooses the format and the coding of a stream by the client's headers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from headwater.api.errors import NotAcceptableError
from headwater.api.streams.codings import GZIP, IDENTITY, ZSTD, Coding
from headwater.api.streams.encoding import WireForm
from headwater.sync.formats import Bson, Format, Ndjson

NDJSON = "application/x-ndjson"
BSON = "application/vnd.powersync.bson-stream"

_ANY = ("application/*", "*/*")
_IDENTITY_WEIGHT = 1e-9  # of identity when the header does not name it: acceptable, but after all that it names


@lru_cache(maxsize=64)
def choose_form(accept: str | None, accept_encoding: str | None, *, raw: bool) -> WireForm:
    """Choose format and coding for a client with these headers. `raw` says how NDJSON writes rows. Raises
    NotAcceptableError."""
    if _takes_bson_only(accept):
        # Zstd's pieces put spaces between lines, which BSON does not allow
        return WireForm(Bson(), choose_coding(accept_encoding, (GZIP,)))
    return WireForm(Ndjson(raw), choose_coding(accept_encoding, (ZSTD, GZIP)))


def content_type(written_in: Format) -> str:
    """The media type of a format, exactly as clients compare it."""
    return BSON if isinstance(written_in, Bson) else NDJSON


def choose_coding(accepted: str | None, offered: Sequence[Coding]) -> Coding:
    """Choose a coding by an Accept-Encoding header: the one with the highest weight, among equals the first offered,
    and identity if it names none. Raises NotAcceptableError when it rules out all of them."""
    weights = _weights(accepted)
    rest = weights.get("*", 0.0)
    candidates = [(weights.get(coding.name, rest), coding) for coding in offered]
    identity = weights.get(IDENTITY.name, weights.get("*", _IDENTITY_WEIGHT))
    weight, coding = max([*candidates, (identity, IDENTITY)], key=lambda each: each[0])
    if weight <= 0:
        raise NotAcceptableError("no content coding is acceptable", "Accept-Encoding header", "accept gzip or identity")
    return coding


def _takes_bson_only(accept: str | None) -> bool:
    """Whether the header rules out NDJSON. Clients that accept both prefer BSON, but get NDJSON, which costs the server
    less (see `sync.formats`). A header that names neither gets NDJSON too."""
    weights = _weights(accept)
    ndjson = next((weights[name] for name in (NDJSON, *_ANY) if name in weights), 0.0)
    return weights.get(BSON, 0.0) > 0 and ndjson <= 0


def _weights(header: str | None) -> dict[str, float]:
    return dict(_weighted(item) for item in (header or "").split(",") if item.strip())


def _weighted(item: str) -> tuple[str, float]:
    name, *parameters = (part.strip() for part in item.lower().split(";"))
    weights = [match[1] for text in parameters if (match := re.fullmatch(r"q=([01](?:\.[0-9]{0,3})?)", text))]
    return "gzip" if name == "x-gzip" else name, float(weights[0]) if weights else 1.0
