"""Sync configs broken in many ways: deterministic mutations of good ones, and a list of nasty texts."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

_TOKEN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|[0-9]+|'[^'\n]*'|\"[^\"\n]*\"|\n[ ]*|[ ]+|.", re.DOTALL)
HOSTILE = (
    "'", '"', "(", ")", "[", "]", "{", "}", "`", ";", "--", "/*", "*/", "\\", "$", "$$", "%", "&", "*", "&a ", "*a",
    "!", "!!binary ", "!<x> ", "<<: ", "|", ">", "?", ": ", ":", "- ", "#", ",", "\t", "\ufeff", "\x00", "\x85",
    "\u2028", "\u200b", "\u202e", "\xe9", "\U0001f600", "\ud800", "\r\n", "\r", "---\n", "...\n", "%YAML 1.1\n",
    "null", "~", "true", "12", "-1", "1e999", "9999999999999999999999999999999999999999", "0x1F", "2001-01-01", "[]",
    "{}", "x: {y: [z]}", "SELECT", "FROM", "WHERE", "AND", "OR", "NOT", "IN", "JOIN", "LEFT JOIN", "ON", "UNION",
    "WITH", "ORDER BY", "GROUP BY", "HAVING", "LIMIT", "DISTINCT", "DELETE", "CAST", "::", "->", "->>", "&&", "||",
    "=", "<>", "CASE", "END", "BETWEEN", "NULL", "AS", ".", "*", "EXISTS", "SELECT 1", "(SELECT 1)", "now()",
    "random()", "load_extension('x')", "readfile('/etc/passwd')", "pragma_table_info('t')", "json_each(1)",
    "sqlite_master", "auth.user_id()", "auth.nothing()", "request.user_id()", "bucket.id", "token_parameters.x",
    "subscription.parameters()", "connection.parameter(1)", "foo(bar(baz()))", "ARRAY[1]", "ROW(1)",
    "interval '1 day'", "$1", "?1", ":x", "@x", "U&'x'", "E'\\n'", "x'ff'", "1.5e10", "count(*) OVER ()", "a.b.c.d",
    "a > now() - interval '1 day'", "current_date", "unknown_key: 1\n", "config", "streams", "queries", "edition: 9",
)  # fmt: skip


def mutants(text: str, number: int, seed: int) -> Iterator[str]:
    """`number` broken forms of a config, the same for the same seed; some may still be right."""
    chance = random.Random(seed)
    ways: tuple[Callable[[list[str], int, random.Random], None], ...] = (
        _delete, _repeat, _replace, _replace, _insert, _swap, _cut, _indent, _quote, _value,
    )  # fmt: skip
    for index in range(number):
        tokens = _TOKEN.findall(text)
        for _ in range(1 + index % 3):
            ways[chance.randrange(len(ways))](tokens, chance.randrange(len(tokens)), chance)
            if not tokens:
                break
        yield "".join(tokens)


def _delete(tokens: list[str], at: int, _: random.Random) -> None:
    del tokens[at]


def _repeat(tokens: list[str], at: int, chance: random.Random) -> None:
    tokens[at:at] = tokens[at : at + chance.randrange(1, 30)]


def _replace(tokens: list[str], at: int, chance: random.Random) -> None:
    tokens[at] = chance.choice(HOSTILE)


def _insert(tokens: list[str], at: int, chance: random.Random) -> None:
    tokens.insert(at, chance.choice(HOSTILE))


def _swap(tokens: list[str], at: int, chance: random.Random) -> None:
    other = chance.randrange(len(tokens))
    tokens[at], tokens[other] = tokens[other], tokens[at]


def _cut(tokens: list[str], at: int, _: random.Random) -> None:
    del tokens[at + 1 :]


def _indent(tokens: list[str], at: int, chance: random.Random) -> None:
    tokens.insert(at, "\n" + " " * chance.randrange(8))


def _quote(tokens: list[str], at: int, chance: random.Random) -> None:
    tokens[at] = chance.choice(("'", '"', "`", "")) + tokens[at].strip("'\"") + chance.choice(("'", '"', "]", ")"))


def _value(tokens: list[str], at: int, chance: random.Random) -> None:
    """Another value for the next key."""
    while at < len(tokens) and tokens[at] != ":":
        at += 1
    end = at + 1
    while end < len(tokens) and not tokens[end].startswith("\n"):
        end += 1
    tokens[at + 1 : end] = [" ", chance.choice(HOSTILE)]
