"""Restricts the addresses that keys may be fetched from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from headwater.api.auth.errors import AddressRefusedError, Ipv6RefusedError

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
        """Whether an address is refused."""
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
