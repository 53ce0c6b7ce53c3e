"""Slips in the words of a query that the parser would refuse without a reason, or read as something else: placeholders
and templates that nothing fills, quotes of other databases, a missing SELECT, brackets, and mistyped key words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import NoReturn

from sqlglot.tokenizer_core import Token, TokenType

from headwater_rules.errors import RuleCode, RuleError
from headwater_rules.text.written import SqlText

_REQUEST = (
    "nothing fills in placeholders here: call the value, as in `auth.user_id()` for the user and"
    " `subscription.parameter('{0}')` for what the app asks for (`request.user_id()` and `bucket.{0}` in"
    " bucket definitions)"
)
_OPERANDS = frozenset(
    {TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING, TokenType.NUMBER, TokenType.R_PAREN, TokenType.R_BRACKET}
)
_STARTS = frozenset({"SELECT", "WITH", "FROM", "("})
_OTHERS = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "ALTER", "DROP", "VALUES", "TABLE"})
_UNFINISHED = frozenset(
    {
        "AND",
        "OR",
        "NOT",
        "WHERE",
        "FROM",
        "SELECT",
        "JOIN",
        "ON",
        "IN",
        "LIKE",
        "IS",
        "=",
        "!=",
        "<>",
        "<",
        ">",
        ",",
        "BY",
    }
)
_KEYWORDS = ("SELECT", "FROM", "WHERE", "JOIN", "INNER", "AND", "LIKE", "BETWEEN")
_SIMILAR = 0.74
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


def refuse_slips(text: SqlText, tokens: Sequence[Token]) -> None:
    """Raise RuleError for the first slip."""
    for number, token in enumerate(tokens):
        before = tokens[number - 1] if number else None
        after = tokens[number + 1] if number + 1 < len(tokens) else None
        touching = after if after is not None and after.start == token.end + 1 else None
        match token.token_type:
            case TokenType.COLON if touching is not None and _is_name(touching):
                _refuse_placeholder(text, token, touching)
            case TokenType.PARAMETER if touching is not None and (_is_name(touching) or touching.text.isdigit()):
                _refuse_placeholder(text, token, touching)
            case TokenType.PLACEHOLDER if before is None or before.token_type not in _OPERANDS:
                _refuse_placeholder(text, token, token)
            case TokenType.L_BRACE:
                _refuse_template(text, tokens, number)
            case TokenType.UNKNOWN if token.text == "`":
                _refuse_backticks(text, tokens, number)
            case _:
                pass
    _refuse_start(text, tokens)


def _is_name(token: Token) -> bool:
    return token.text.isidentifier()


def _refuse_placeholder(text: SqlText, first: Token, last: Token) -> NoReturn:
    written = text.sql[first.start : last.end + 1]
    name = last.text if last.text.isidentifier() else "name"
    raise RuleError(
        RuleCode.SQL_SYNTAX,
        f"`{written}` is a placeholder, for which a rule has no value",
        text.span(first.start, last.end + 1),
        _REQUEST.format(name),
    )


def _refuse_template(text: SqlText, tokens: Sequence[Token], number: int) -> NoReturn:
    end = next((each for each in tokens[number:] if each.token_type is TokenType.R_BRACE), tokens[number])
    start = tokens[number].start
    while start and text.sql[start - 1] in "${":
        start -= 1
    name = next((each.text for each in tokens[number:] if _is_name(each)), "name")
    message = f"`{text.sql[start : end.end + 1]}` is of a template, and rules are none"
    raise RuleError(RuleCode.SQL_SYNTAX, message, text.span(start, end.end + 1), _REQUEST.format(name))


def _refuse_backticks(text: SqlText, tokens: Sequence[Token], number: int) -> NoReturn:
    start = tokens[number].start
    end = next((each.end + 1 for each in tokens[number + 1 :] if each.text == "`"), start + 1)
    name = text.sql[start + 1 : end - 1]
    meant = name if _PLAIN.fullmatch(name) else f'"{name}"'
    message = "names are not written in backticks here"
    if not name:
        raise RuleError(RuleCode.SQL_SYNTAX, message, text.span(start, end), 'write them in "…", or without quotes')
    raise RuleError(
        RuleCode.SQL_SYNTAX, message, text.span(start, end), f"write `{meant}`", edit=text.edit(start, end, meant)
    )


def _refuse_start(text: SqlText, tokens: Sequence[Token]) -> None:
    """Raise RuleError for a query whose SELECT is missing or mistyped."""
    if not tokens or tokens[0].text.upper() in _STARTS:
        return
    first = tokens[0]
    start, end = first.start, first.end + 1
    message = "a query begins with `SELECT`"
    if first.text.upper() in _OTHERS:
        message = f"a query is a `SELECT`, and this is `{first.text.upper()}`"
        hint = "rules only read: select the rows to sync"
        raise RuleError(RuleCode.UNSUPPORTED, message, text.span(start, end), hint)
    if _meant(first.text) == "SELECT":
        edit = text.edit(start, end, "SELECT")
        raise RuleError(RuleCode.SQL_SYNTAX, message, text.span(start, end), "did you mean `SELECT`?", edit=edit)
    if any(each.token_type is TokenType.FROM for each in tokens):
        written = text.sql[start:end]
        edit = text.edit(start, end, f"SELECT {written}")
        raise RuleError(RuleCode.SQL_SYNTAX, message, text.span(start, end), f"write `SELECT {written}`", edit=edit)
    table = first.text if _is_name(first) else "table"
    edit = (
        text.edit(start, end, f"SELECT * FROM {text.sql[start:end]}") if len(tokens) == 1 and _is_name(first) else None
    )
    hint = f"write `SELECT * FROM {table} WHERE …`"
    raise RuleError(RuleCode.SQL_SYNTAX, message, text.span(start, end), hint, edit=edit)


def syntax_error(text: SqlText, tokens: Sequence[Token], near: tuple[int, int]) -> RuleError:
    """The error for a query that can't be parsed, where the parser stopped at the characters `near`: what seems to be
    the reason, else the place."""
    found = next(_reasons(text, tokens, near), None)
    if found is not None:
        return found
    written = text.sql[slice(*near)]
    message = f"the SQL cannot be parsed{f' near `{written}`' if written else ''}"
    hint = "the syntax is that of Postgres: look at this place and at the word before it"
    return RuleError(RuleCode.SQL_SYNTAX, message, text.span(*near), hint)


def _reasons(text: SqlText, tokens: Sequence[Token], near: tuple[int, int]) -> Iterator[RuleError]:
    opened: list[Token] = []
    for token in tokens:
        if token.token_type is TokenType.L_PAREN:
            opened.append(token)
        elif token.token_type is TokenType.R_PAREN and not opened:
            place = text.span(token.start, token.end + 1)
            hint = "remove it, or write the `(` that it belongs to"
            yield RuleError(RuleCode.SQL_SYNTAX, "this `)` closes no bracket", place, hint)
        elif token.token_type is TokenType.R_PAREN:
            opened.pop()
    before = [token for token in tokens if token.start <= near[0]]
    for token in reversed(before[-2:]):
        meant = _meant(token.text)
        if meant and token.token_type is TokenType.VAR:
            place = text.span(token.start, token.end + 1)
            yield RuleError(
                RuleCode.SQL_SYNTAX, f"`{token.text}` is no key word of SQL", place, f"did you mean `{meant}`?",
                edit=text.edit(token.start, token.end + 1, meant),
            )  # fmt: skip
    if tokens and tokens[-1].text.upper() in _UNFINISHED:
        last = tokens[-1]
        place = text.span(last.start, last.end + 1)
        hint = f"write what comes after `{last.text}`, or remove it"
        yield RuleError(RuleCode.SQL_SYNTAX, f"the query ends after `{last.text}`", place, hint)
    if opened:
        place = text.span(opened[-1].start, opened[-1].end + 1)
        yield RuleError(RuleCode.SQL_SYNTAX, "this `(` is not closed", place, "write the `)` that belongs to it")


def _meant(word: str) -> str:
    """The key word that a mistyped word stands for, or an empty string."""
    if word.upper() in _KEYWORDS:
        return ""
    return next(iter(difflib.get_close_matches(word.upper(), _KEYWORDS, n=1, cutoff=_SIMILAR)), "")
