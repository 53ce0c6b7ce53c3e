"""`client_auth`: which tokens are accepted."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from headwater.api.auth.claims import TrustedIssuer
from headwater.api.auth.errors import AddressRefusedError
from headwater.api.auth.fetch import AddressRules
from headwater.api.auth.keys import (
    DAY,
    GOOD_SECRET,
    InvalidKeyError,
    Key,
    KeyAddress,
    check_secret,
    checks_signatures,
    parse_key,
)
from headwater.config.reader import Section

SUPABASE_LIFETIME = 7 * DAY + 1200
SUPABASE_AUDIENCE = frozenset({"authenticated"})
FIREBASE_KEYS = "https://www.googleapis.com/service_accounts/v1/jwk/securetoken@system.gserviceaccount.com"

_NO_URL = "PSYNC_S3102"
"""A value of `jwks_uri` is not a URL."""

_NO_HTTP = "PSYNC_S3103"
"""A URL in `jwks_uri` is not an HTTP URL."""

_PROJECT = re.compile(r"db\.([a-z0-9]+)\.supabase\.co", re.ASCII)
_NEW_SECRET = f"make one with: openssl rand -base64 {GOOD_SECRET}"


@dataclass(frozen=True, slots=True)
class ClientAuth:
    """Which user tokens are accepted: those signed with one of `keys`, or with a key published at one of `addresses`,
    for one of `audience`, or by one of `issuers`, whose tokens may come without one. `rules` decide which hosts may be
    asked for keys."""

    keys: tuple[Key, ...] = field(default=(), repr=False)
    audience: frozenset[str] = frozenset()
    addresses: tuple[KeyAddress, ...] = field(default=(), repr=False)
    rules: AddressRules = field(default_factory=AddressRules)
    issuers: tuple[TrustedIssuer, ...] = ()


def read_client_auth(root: Section, hosts: Collection[str]) -> ClientAuth:
    """Read the section. Adds errors and warnings to the findings. The `hosts` of the sources name the Supabase
    project."""
    section = root.section("client_auth")
    rules = _rules(section)
    supabase = section.boolean("supabase", default=False)
    keys = _keys(section) + _supabase_secret(section, supabase=supabase)
    addresses = tuple(KeyAddress(url) for url in section.texts("jwks_uri") if _is_usable(section, url, rules))
    if supabase:
        addresses += _supabase_address(section, hosts, secret=bool(keys), named=bool(keys or addresses))
    addresses += _firebase_address(section)
    audience = frozenset(section.texts("audience"))
    if "" in audience:
        section.error("an empty text is not an audience", "audience", fix="set it, or remove it")
    issuers = tuple(found for each in section.sections("without_audience") if (found := _issuer(each)) is not None)
    wrong = ("client_auth", "replication") if supabase else ("client_auth",)  # its keys are named by the source
    if not any(each.key.startswith(wrong) for each in root.findings.errors):
        _warn_if_all_are_refused(root, section, [*keys, *addresses], audience if not issuers else {""})
    section.warn_unknown()
    return ClientAuth(keys, audience, addresses, rules, issuers)


_CLIENTS = ("client_id", "azp")
"""Claims that say for which client a token is, in place of aud."""


def _issuer(section: Section) -> TrustedIssuer | None:
    """An issuer whose tokens have no aud. Without a client they would be those of every app of the issuer."""
    issuer = section.text("issuer")
    clients = {name: frozenset(section.texts(name)) for name in _CLIENTS if name in section}
    section.refuse_unknown()
    if not issuer:
        section.error("has no issuer", "issuer", fix="write the claim iss of its tokens")
    elif not clients or any(not each or "" in each for each in clients.values()):
        fix = "write the claim client_id or azp of its tokens; one that has neither needs an aud"
        section.error("names no client of the issuer, so that tokens for every other app would pass", fix=fix)
    else:
        return TrustedIssuer(issuer, clients)
    return None


def _warn_if_all_are_refused(
    root: Section, section: Section, trusted: Sequence[Key | KeyAddress], audience: Collection[str]
) -> None:
    if not trusted:
        what = "no key is configured, so every token is refused; add client_auth.jwks_uri or client_auth.jwks.keys"
        root.warn(what, "client_auth")
    elif not audience and any(each.audience is None for each in trusted):
        section.warn("is empty, so every token is refused; add the value of the claim aud of your tokens", "audience")


def _keys(section: Section) -> tuple[Key, ...]:
    jwks = section.section("jwks")
    keys = tuple(held for each in jwks.sections("keys") if (held := _key(each)) is not None)
    jwks.warn_unknown()
    return keys


def _key(section: Section) -> Key | None:
    jwk = section.plain()
    if "key_ops" in section:
        jwk["key_ops"] = list(section.texts("key_ops"))
    if not checks_signatures(jwk):
        section.warn("is not a key for signatures, so it is ignored")
        return None
    try:
        key = parse_key(jwk)
    except InvalidKeyError as error:
        section.error(error.what, fix=error.fix, code=error.code)
        return None
    if isinstance(key.material, bytes):
        section.refuse_example("k", str(jwk["k"]), key.material.decode("ascii", "ignore"), fix=_NEW_SECRET)
        _warn_of_short_secret(section, "k", key.material)
    return key


def _warn_of_short_secret(section: Section, key: str, secret: bytes) -> None:
    if len(secret) < GOOD_SECRET:
        what = f"has {len(secret)} bytes, so that anyone with a token can guess it by trying; {_NEW_SECRET}"
        section.warn(what, key)


def _is_usable(section: Section, url: str, rules: AddressRules) -> bool:
    """Whether keys can be fetched from `url`. Adds an error when they can't."""
    parts = _parts(url)
    if parts is None or not parts.hostname:
        fix = "write the URL of your keys, like https://example.com/.well-known/jwks.json"
        section.error("is not a URL", "jwks_uri", fix=fix, code=_NO_URL)
    elif parts.scheme not in {"http", "https"}:
        section.error("is not an HTTP URL", "jwks_uri", fix="use https", code=_NO_HTTP)
    elif parts.username is not None:
        section.error("has a login, which would not be sent", "jwks_uri", fix="remove it", code=_NO_URL)
    elif _is_ip(parts.hostname) and rules.refuse(parts.hostname):
        fix = "see jwks_reject_ip_ranges and block_local_jwks"
        section.error(f"{parts.hostname} is refused", "jwks_uri", fix=fix, code=AddressRefusedError.code)
    else:
        return True
    return False


def _parts(url: str) -> SplitResult | None:
    if not url.isascii() or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - it is only validated when read
    except ValueError:
        return None
    return parts


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _rules(section: Section) -> AddressRules:
    named = section.texts("jwks_reject_ip_ranges")
    local = "local" in named
    ranges: list[IPv4Network | IPv6Network] = []
    for each in named:
        try:
            if each != "local":
                ranges.append(ip_network(each, strict=False))
        except ValueError:
            fix = "write it like 10.0.0.0/8, or local for every address that is not public"
            section.error(f"{each!r} is not a range of IP addresses", "jwks_reject_ip_ranges", fix=fix)
    section.no_effect("local addresses are allowed unless block_local_jwks is true", "allow_local_jwks")
    block_local = section.boolean("block_local_jwks", default=False)
    return AddressRules(tuple(ranges), local=local or block_local, ipv4_only=block_local)


def _supabase_secret(section: Section, *, supabase: bool) -> tuple[Key, ...]:
    secret = section.text("supabase_jwt_secret")
    if secret is None:
        return ()
    if not supabase:
        section.no_effect("it is a key of the Supabase project only with supabase: true", "supabase_jwt_secret")
        return ()
    try:
        check_secret(secret.encode(), "")
    except InvalidKeyError as error:
        section.error(error.what, "supabase_jwt_secret", fix="copy it from the project's settings", code=error.code)
        return ()
    section.refuse_example("supabase_jwt_secret", secret, fix=_NEW_SECRET)
    _warn_of_short_secret(section, "supabase_jwt_secret", secret.encode())
    return (Key(None, frozenset({"HS256"}), secret.encode(), SUPABASE_AUDIENCE, SUPABASE_LIFETIME),)


def _supabase_address(section: Section, hosts: Collection[str], *, secret: bool, named: bool) -> tuple[KeyAddress, ...]:
    """The address of the keys of the only project among the sources: whose tokens are accepted must not depend on the
    order of sources. With `secret` or `named`, the config names keys itself."""
    projects = sorted({found[1] for host in hosts if (found := _PROJECT.fullmatch(host)) is not None})
    if len(projects) > 1:
        if not named:
            what = f"the sources are of several projects ({', '.join(projects)})"
            fix = "set jwks_uri to the keys of the project whose users sync, and audience: [authenticated]"
            section.error(what, "supabase", fix=fix)
        return ()
    if projects:
        url = f"https://{projects[0]}.supabase.co/auth/v1/.well-known/jwks.json"
        return (KeyAddress(url, SUPABASE_AUDIENCE, SUPABASE_LIFETIME),)
    if not secret:
        section.warn(_NO_PROJECT, "supabase")
    return ()


def _firebase_address(section: Section) -> tuple[KeyAddress, ...]:
    """The address of Firebase's keys, which all its projects share: the audience distinguishes the projects."""
    project = section.text("firebase")
    if project is None:
        return ()
    if not project:
        section.error("is empty", "firebase", fix="write the id of the Firebase project")
        return ()
    return (KeyAddress(FIREBASE_KEYS, frozenset({project})),)


_NO_PROJECT = (
    "the source is not at db.<project>.supabase.co, so its keys are not known; set"
    " jwks_uri: https://<project>.supabase.co/auth/v1/.well-known/jwks.json and audience: [authenticated]"
)
