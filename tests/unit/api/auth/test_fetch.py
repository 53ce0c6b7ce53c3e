"""Which hosts keys may be fetched from."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from headwater.api.auth.errors import AddressRefusedError, Ipv6RefusedError
from headwater.api.auth.fetch import AddressRules

LOCAL = AddressRules(local=True)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "198.18.0.1", "224.0.0.1",
        "169.254.169.254",  # where clouds keep secrets
        "255.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1",
        "64:ff9b:1::1", "2002:7f00:1::", "2001::1", "2001:db8::1", "fc00::1", "fd12:3456::1", "fe80::1", "fe80::1%eth0",
        "fec0::1", "ff02::1",
    ],
)  # fmt: skip
def test_local_addresses(address: str) -> None:
    assert LOCAL.refuse(address)
    assert not AddressRules().refuse(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "203.0.114.1", "2600::1", "2a00:1450::5", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses(address: str) -> None:
    assert not LOCAL.refuse(address)


def test_range_holds_every_form_of_an_address() -> None:
    rules = AddressRules((ip_network("203.0.114.0/24"), ip_network("2600::/16")))
    for address in ("203.0.114.7", "::ffff:203.0.114.7", "64:ff9b::cb00:7207", "2600::1"):
        assert rules.refuse(address)
    for address in ("203.0.115.7", "2601::1"):
        assert not rules.refuse(address)


def test_allowed_addresses_of_a_host() -> None:
    assert LOCAL.allowed("host", ["10.0.0.1", "8.8.8.8", "::1", "2600::1"]) == ["8.8.8.8", "2600::1"]
    assert AddressRules(ipv4_only=True).allowed("host", ["2600::1", "8.8.8.8"]) == ["8.8.8.8"]


def test_host_without_an_allowed_address() -> None:
    with pytest.raises(AddressRefusedError) as refused:
        LOCAL.allowed("host", ["10.0.0.1", "::1"])
    assert (refused.value.code, refused.value.status) == ("PSYNC_S2203", 503)
    both = AddressRules(local=True, ipv4_only=True)
    with pytest.raises(Ipv6RefusedError) as unspoken:
        both.allowed("host", ["2600::1"])
    assert (unspoken.value.code, unspoken.value.status) == ("PSYNC_S2202", 503)
    with pytest.raises(AddressRefusedError):
        both.allowed("host", ["2600::1", "10.0.0.1"])
