"""Fetches keys in JWKS form from an address, and restricts the addresses that they may be fetched from."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

import certifi
import httpcore
import orjson

from headwater.api.auth.errors import AddressRefusedError, Ipv6RefusedError, JwksError
from headwater.api.auth.keys import InvalidKeyError, Key, KeyAddress, checks_signatures, parse_key

_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class AddressRules:
    """Which addresses are refused: those in `ranges`; with `local`, all that are not public unicast addresses; with
    `ipv4_only`, all IPv6 addresses."""

    ranges: tuple[IPv4Network | IPv6Network, ...] = ()
    local: bool = False
    ipv4_only: bool = False

    def refuse(self, address: str) -> bool:
        found = ip_address(address)
        if self.ipv4_only and found.version == 6:
            return True
        # an IPv4 address that is embedded in an IPv6 address leads to the same host
        forms = {found, _meant(found)}
        if self.local and not all(_is_public(each) for each in forms):
            return True
        return any(each in network for network in self.ranges for each in forms)

    def allowed(self, host: str, addresses: Sequence[str]) -> list[str]:
        """The addresses of a host that may be connected to. Raises AddressRefusedError or Ipv6RefusedError when there
        are none."""
        allowed = [each for each in addresses if not self.refuse(each)]
        if allowed:
            return allowed
        if self.ipv4_only and all(ip_address(each).version == 6 for each in addresses):
            raise Ipv6RefusedError("the host of the keys has IPv6 addresses only, which are refused", host, _SEE)
        raise AddressRefusedError("the host of the keys is at an address that is refused", host, _SEE)


_SEE = "see client_auth.jwks_reject_ip_ranges and block_local_jwks"


def _meant(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address embeds (NAT64, IPv4-mapped, 6to4), or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _UNICAST:
        return address in _NAT64 or address.ipv4_mapped is not None  # the embedded IPv4 address decides
    return address.is_global and not address.is_multicast


SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects only to addresses that the rules allow."""

    def __init__(self, rules: AddressRules) -> None:
        self._rules = rules
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        *others, last = self._rules.allowed(host, await _resolve(host, port))
        for address in others:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._network.connect_tcp(last, port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


async def _resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, without duplicates. Raises httpcore.ConnectError."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError("the host name can't be resolved") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


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
