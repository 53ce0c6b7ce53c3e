"""Fetches keys in JWKS form from an address."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import certifi
import httpcore
import orjson

from headwater.api.auth.addresses import AddressRules
from headwater.api.auth.errors import JwksError
from headwater.api.auth.keys import Key, KeyAddress, checks_signatures, parse_key
from headwater.api.auth.material import InvalidKeyError
from headwater.api.auth.network import CheckedNetwork

SECONDS = 30.0
"""Time limit of a fetch, from resolving the host name to the last byte."""

CONNECT_SECONDS = 5.0
LARGEST = 1 << 20
"""The most bytes of an answer."""

_HEADERS = [("Accept", "application/json"), ("Accept-Encoding", "identity"), ("User-Agent", "headwater")]
SEE_LOG = "the service's log says why"
CHECK_ADDRESS = "check client_auth.jwks_uri, and the network"


@dataclass(frozen=True, slots=True)
class KeySet:
    """The answer of an address: the keys that can be used, and why others are ignored."""

    keys: tuple[Key, ...]
    ignored: tuple[str, ...] = ()


class JwksClient:
    """Fetches the keys of one address, each time over a new connection. It follows no redirects and uses no proxy:
    either could get around the address rules."""

    def __init__(self, address: KeyAddress, rules: AddressRules) -> None:
        self.address = address
        self._rules = rules
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, seconds: float = SECONDS) -> KeySet:
        """Fetch the keys within so many seconds. Raises JwksError."""
        try:
            async with asyncio.timeout(seconds):
                content = await self._get()
        except TimeoutError:
            raise self._failed(f"the answer was not complete within {seconds:.0f} s") from None
        except httpcore.TimeoutException:
            raise self._failed("it did not answer in time") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            raise self._failed(str(error) or type(error).__name__) from error
        return self._read(content)

    async def _get(self) -> bytes:
        timeouts = {"connect": CONNECT_SECONDS, "read": SECONDS, "write": SECONDS, "pool": SECONDS}
        async with (
            httpcore.AsyncConnectionPool(self._tls_context(), network_backend=CheckedNetwork(self._rules)) as pool,
            pool.stream("GET", self.address.url, headers=_HEADERS, extensions={"timeout": timeouts}) as response,
        ):
            if 300 <= response.status < 400:
                raise self._failed(f"it answered {response.status}, and redirects are not followed")
            if response.status != 200:
                raise self._failed(f"it answered {response.status}")
            content = b""
            async for part in response.aiter_stream():
                content += part
                if len(content) > LARGEST:
                    raise self._failed(f"its answer has more than {LARGEST} bytes")
            return content

    def _tls_context(self) -> ssl.SSLContext | None:
        """TLS with the machine's certificate authorities, and with certifi's, since a machine may have none."""
        if self._tls is None and urlsplit(self.address.url).scheme == "https":
            self._tls = ssl.create_default_context()
            self._tls.load_verify_locations(certifi.where())
        return self._tls

    def _read(self, content: bytes) -> KeySet:
        try:
            found = orjson.loads(content)
        except orjson.JSONDecodeError:
            raise self._failed("its answer is not JSON") from None
        listed = found.get("keys") if isinstance(found, dict) else None
        if not isinstance(listed, list):
            raise self._failed("its answer has no list `keys`")
        return read_set([each for each in listed if isinstance(each, dict)], self.address)

    def _failed(self, reason: str) -> JwksError:
        return JwksError("the keys of tokens can't be fetched", f"{self.address.shown}: {reason}", SEE_LOG)


def read_set(listed: list[Mapping[str, object]], address: KeyAddress) -> KeySet:
    """Read a JWKS. A key that can't be used is ignored, with the reason, and the others are kept."""
    keys, ignored = [], []
    for jwk in listed:
        try:
            key = parse_key(jwk)
            if isinstance(key.material, bytes):
                raise InvalidKeyError("it is a shared secret, which must not be published")
            if not checks_signatures(jwk):
                raise InvalidKeyError("the key is not for checking signatures")
        except InvalidKeyError as error:
            ignored.append(error.what)
            continue
        keys.append(replace(key, audience=address.audience, max_lifetime=address.max_lifetime))
    return KeySet(tuple(keys), tuple(ignored))
