"""The studio's session is whoever signed in with a token of the config, and nobody else, for as long as the token is
there."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.api.studio.sessions import SESSION_SECONDS, Operators
from headwater.api.studio.tokens import AdminToken, Role

EDIT = AdminToken("the token of an editor", Role.EDIT)
VIEW = AdminToken("the token of a viewer", Role.VIEW, "Vera")


def operators(*tokens: AdminToken, at: float = 1000.0) -> Operators:
    return Operators(tokens, lambda: at)


def test_cookie_says_who_it_is_in_every_process() -> None:
    cookie = operators(EDIT, VIEW).sign_in(EDIT, "Ada")
    session = operators(VIEW, EDIT).session(cookie)
    assert session is not None
    assert (session.role, session.name, session.expires) == (Role.EDIT, "Ada", 1000.0 + SESSION_SECONDS)
    again = operators(EDIT).session(cookie)
    assert again == session, "the page gets the same csrf wherever it asks"


def test_name_of_the_token_comes_first() -> None:
    session = operators(VIEW).session(operators(VIEW).sign_in(VIEW, "Ada"))
    assert session is not None
    assert session.name == "Vera"


def test_end_of_a_session() -> None:
    cookie = operators(EDIT).sign_in(EDIT)
    assert operators(EDIT, at=1000.0 + SESSION_SECONDS - 1).session(cookie)
    assert operators(EDIT, at=1000.0 + SESSION_SECONDS).session(cookie) is None
    assert operators(VIEW).session(cookie) is None, "its token was removed"
    assert operators(AdminToken(EDIT.text, Role.VIEW)).session(cookie) is None, "its token has another role"
    assert operators().session(cookie) is None


def promoted(cookie: str) -> str:
    payload, _, signature = cookie.partition(".")
    claims = json.loads(urlsafe_b64decode(payload + "=="))
    claims["role"] = "edit"
    return urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode() + "." + signature


def resigned(cookie: str) -> str:
    """Signed by somebody who knows the program, and no token."""
    known = AdminToken("", Role.EDIT)
    return Operators((known,), lambda: 1000.0).sign_in(known)


@pytest.mark.parametrize(
    "forge",
    [
        promoted,
        resigned,
        lambda cookie: cookie + "x",
        lambda cookie: cookie[:-1],
        lambda cookie: cookie.partition(".")[0],
        lambda cookie: cookie.partition(".")[0] + ".",
        lambda cookie: "." + cookie.partition(".")[2],
        lambda cookie: cookie.replace(".", "=."),
        lambda cookie: "A" * 100_000,
        lambda cookie: cookie + "\u00e9",
        lambda cookie: "",
    ],
)
def test_forged_cookie(forge: Callable[[str], str]) -> None:
    both = operators(EDIT, VIEW)
    cookie = both.sign_in(VIEW)
    assert both.session(cookie)
    assert both.session(forge(cookie)) is None


def test_csrf_is_no_signature_of_a_cookie() -> None:
    cookie = operators(EDIT).sign_in(EDIT)
    session = operators(EDIT).session(cookie)
    assert session is not None
    assert operators(EDIT).session(f"{cookie.partition('.')[0]}.{session.csrf}") is None


@given(st.text())
def test_any_text_as_cookie_or_token(text: str) -> None:
    assert operators(EDIT).session(text) is None
    assert operators(EDIT).find(text) is None
