"""What a client takes: the format and the coding of a stream, from its headers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headwater.api.errors import NotAcceptableError
from headwater.api.streams.codings import GZIP, IDENTITY, ZSTD, Coding
from headwater.api.streams.encoding import WireForm
from headwater.sync.formats import Bson, Format, Ndjson

NDJSON = "application/x-ndjson"
BSON = "application/vnd.powersync.bson-stream"

_ANY = ("application/*", "*/*")
_IDENTITY_WEIGHT = 1e-9  # of lines as they are, if not asked for: taken, but liked less than anything that is


def choose_form(accept: str | None, accept_encoding: str | None, *, raw: bool) -> WireForm:
    """The form for a client with these headers. `raw` is about rows in NDJSON. Raises NotAcceptableError."""
    if _takes_bson_only(accept):
        # Zstd's pieces bring blanks between lines, which BSON has no place for
        return WireForm(Bson(), choose_coding(accept_encoding, (GZIP,)))
    return WireForm(Ndjson(raw), choose_coding(accept_encoding, (ZSTD, GZIP)))


def content_type(written_in: Format) -> str:
    """Its media type, exactly as clients compare it."""
    return BSON if isinstance(written_in, Bson) else NDJSON


def choose_coding(accepted: str | None, offered: Sequence[Coding]) -> Coding:
    """The coding of an Accept-Encoding header's choice: its highest weight, of equal ones the first offered. A client
    that names none of them gets lines as they are. Raises NotAcceptableError when it takes none that we have."""
    weights = _weights(accepted)
    rest = weights.get("*", 0.0)
    candidates = [(weights.get(coding.name, rest), coding) for coding in offered]
    identity = weights.get(IDENTITY.name, weights.get("*", _IDENTITY_WEIGHT))
    weight, coding = max([*candidates, (identity, IDENTITY)], key=lambda each: each[0])
    if weight <= 0:
        raise NotAcceptableError("no content coding is acceptable", "Accept-Encoding header", "accept gzip or identity")
    return coding


def _takes_bson_only(accept: str | None) -> bool:
    """Whether NDJSON is ruled out. Clients that take both say that they like BSON better, but here NDJSON is what
    costs nothing: see `sync.formats`. A header that names neither gets NDJSON."""
    weights = _weights(accept)
    ndjson = next((weights[name] for name in (NDJSON, *_ANY) if name in weights), 0.0)
    return weights.get(BSON, 0.0) > 0 and ndjson <= 0


def _weights(header: str | None) -> dict[str, float]:
    return dict(_weighted(item) for item in (header or "").split(",") if item.strip())


def _weighted(item: str) -> tuple[str, float]:
    name, *parameters = (part.strip() for part in item.lower().split(";"))
    weights = [match[1] for text in parameters if (match := re.fullmatch(r"q=([01](?:\.[0-9]{0,3})?)", text))]
    return "gzip" if name == "x-gzip" else name, float(weights[0]) if weights else 1.0
