"""SQL inside the YAML: parsing it, and mapping nodes of the parse tree to places in the file."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import ClassVar

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import Token, TokenType

from headwater_rules.errors import Code, Place, RuleError, place_in
from headwater_rules.text.written import AS_BLOCK, Written

_CLOSING = re.compile(r"\s*\)")
_WORD = re.compile(r"\w+|[^\w\s]")
_WORDS_PER_QUERY = 10  # what each costs besides its words
_HEXADECIMAL = re.compile(r"\\[xuU]")
MAX_SQL = 100_000  # characters of one query


def _parse_in(parser: PostgresParser, this: exp.Expr | None) -> exp.Expr | None:
    # `x IN a ->> 'b'` is no standard SQL, and sqlglot would read `(x IN a) ->> 'b'`
    if parser._curr and parser._curr.token_type in {TokenType.L_PAREN, TokenType.UNNEST}:
        return parser._parse_in(this)
    return parser.expression(exp.In(this=this, field=parser._parse_bitwise()))


def _parse_keyword_call(parser: PostgresParser) -> exp.Expr:
    """Parse `substring(x FROM 2 FOR 3)` as `substring(x, 2, 3)`."""
    token = parser._tokens[parser._index - 2]
    arguments = parser._parse_csv(parser._parse_disjunction)
    if parser._match(TokenType.FROM):
        arguments.append(_operand(parser))
    if parser._match(TokenType.FOR):
        if len(arguments) == 1:
            arguments.append(exp.Literal.number(1))
        arguments.append(_operand(parser))
    return parser.expression(exp.Anonymous(this=token.text, expressions=arguments)).update_positions(token)


def _operand(parser: PostgresParser) -> exp.Expr:
    found = parser._parse_bitwise()
    if found is None:
        parser.raise_error("Expected an expression")
    return found or exp.Null()


class RuleDialect(Postgres):
    """Postgres' grammar with all functions left as written, because the rule language has its own list of them."""

    class Tokenizer(Postgres.Tokenizer):
        pass

    class Parser(PostgresParser):
        FUNCTIONS: ClassVar = {}
        NO_PAREN_FUNCTIONS: ClassVar = {}
        FUNCTION_PARSERS = {
            "CAST": PostgresParser.FUNCTION_PARSERS["CAST"],
            **dict.fromkeys(("SUBSTRING", "EXTRACT"), _parse_keyword_call),
        }
        NO_PAREN_FUNCTION_PARSERS = {"CASE": PostgresParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
        LAMBDAS: ClassVar = {}  # `f(x -> 'k')` is an access to JSON
        RANGE_PARSERS = {**PostgresParser.RANGE_PARSERS, TokenType.IN: _parse_in}
        JSON_OPERATORS = {
            TokenType.ARROW: lambda self, this, path: self.expression(exp.JSONExtract(this=this, expression=path)),
            TokenType.DARROW: lambda self, this, path: self.expression(
                exp.JSONExtractScalar(this=this, expression=path)
            ),
        }


RuleDialect.Tokenizer._COMMENTS.pop("{#")  # sqlglot knows comments of templates, which are no SQL


@dataclass(frozen=True, slots=True)
class SqlText:
    """An SQL string. `sql` has the lines of the file; `start` and `end` delimit the scalar in `document`."""

    document: str
    start: int
    end: int
    written: Written

    @property
    def sql(self) -> str:
        return self.written.text

    def words(self) -> int:
        """Approximate number of words and signs, and so of the work that the text causes."""
        return sum(1 for _ in _WORD.finditer(self.sql)) + _WORDS_PER_QUERY

    def place(self, start: int = 0, end: int | None = None) -> Place:
        """The place of characters [start, end) of the SQL in the file."""
        if not self.sql:
            return place_in(self.document, self.start, self.end)
        last = max((len(self.sql) if end is None else end) - 1, start)
        return place_in(self.document, self._offset(start), self._offset(last) + 1)

    def place_of(self, node: exp.Expr) -> Place:
        """The place of a node, or of its nearest ancestor with a position."""
        span = self._span(node)
        while span is None and node.parent is not None:
            node = node.parent
            span = self._span(node)
        return self.place(*span) if span else self.place()

    def source_of(self, node: exp.Expr) -> str:
        """The SQL of a node, on one line."""
        span = self._span(node)
        return " ".join(self.sql[slice(*span)].split()) if span else ""

    def _span(self, node: exp.Expr) -> tuple[int, int] | None:
        """First and last character that the parser recorded for a node, including its closing brackets."""
        starts = [item.meta["start"] for item in node.walk() if "start" in item.meta]
        ends = [item.meta["end"] for item in node.walk() if "end" in item.meta]
        if not starts or not ends:
            return None
        start, end = min(starts), max(ends) + 1
        if self.sql.startswith("()", end):
            end += 2
        missing = self.sql.count("(", start, end) - self.sql.count(")", start, end)
        while missing > 0 and (bracket := _CLOSING.match(self.sql, end)):
            missing, end = missing - 1, bracket.end()
        return start, end

    def _offset(self, position: int) -> int:
        offsets = self.written.offsets
        return offsets[min(max(position, 0), len(offsets) - 1)]


def parse_select(text: SqlText) -> exp.Select:
    """The one SELECT in `text`. Raises RuleError for anything else."""
    if len(text.sql) > MAX_SQL:
        raise RuleError(Code.TOO_MANY, f"a query is longer than {MAX_SQL:,} characters", text.place())
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns about statements that are refused below
    dialect = RuleDialect()
    try:
        tokens = dialect.tokenize(text.sql)
        _check_tokens(text, tokens)
        statements = [statement for statement in dialect.parser().parse(tokens, text.sql) if statement]
    except ParseError as error:
        raise _syntax_error(text, error) from None
    except TokenError:
        raise RuleError(
            Code.SQL_SYNTAX, "the SQL ends inside a quoted text or comment", text.place(), "close the quote"
        ) from None
    except RecursionError:
        raise RuleError(Code.TOO_MANY, "the SQL is nested too deeply", text.place(), "nest fewer brackets") from None
    if not statements:
        raise RuleError(Code.SQL_SYNTAX, "the query is empty", text.place(), "write a SELECT statement")
    if len(statements) > 1:
        raise RuleError(
            Code.UNSUPPORTED,
            "only one statement is allowed in a query",
            text.place_of(statements[1]),
            "list further statements under `queries`",
        )
    statement = statements[0]
    if not isinstance(statement, exp.Select):
        raise RuleError(
            Code.UNSUPPORTED,
            "expected a SELECT statement",
            text.place_of(statement),
            "combine several SELECT statements by listing them under `queries`",
        )
    for node in list(statement.find_all(exp.EQ)):
        _read_any(node)
    for searched in list(statement.find_all(exp.In)):
        _read_brackets(searched)
    return statement


def _check_tokens(text: SqlText, tokens: list[Token]) -> None:
    """Raise RuleError for quoted text over lines that YAML joins, and for an escape that hides a part of a comment."""
    behind = 0
    for token in tokens:
        _check_comments(text, behind, token.start)
        behind = token.end + 1
        quoted = any(quote in text.sql[token.start : behind] for quote in "'\"$")
        if quoted and not text.written.joined.isdisjoint(range(token.start, behind)):
            message = "a quoted text goes over several lines, which YAML joins"
            raise RuleError(Code.CHANGED, message, text.place(token.start, behind), AS_BLOCK)
        if not quoted:
            _check_word(text, token.start, behind)
    _check_comments(text, behind, len(text.sql))


def _check_word(text: SqlText, start: int, end: int) -> None:
    """Raise RuleError for a character outside quotes that is invisible or looks like a quote or an operator. Names may
    contain it in SQL, so that a condition would mean another column than its author sees."""
    for position in range(start, end):
        character = text.sql[position]
        if not character.isascii() and not f"a{character}".isidentifier():
            message = f"the character U+{ord(character):04X} is no letter, and so would be part of a name"
            hint = "write texts in '…' and names with such characters in \"…\""
            raise RuleError(Code.SQL_SYNTAX, message, text.place(position, position + 1), hint)


def _check_comments(text: SqlText, start: int, end: int) -> None:
    """`start` and `end` delimit white space and comments."""
    for position in range(start, end):
        offset = text.written.offsets[position]
        if text.sql[position] in "-/*\n" and _HEXADECIMAL.match(text.document, offset):
            message = "an escape stands for a part of a comment"
            raise RuleError(Code.CHANGED, message, text.place(position, position + 1), AS_BLOCK)


def _read_brackets(node: exp.In) -> None:
    """Read `x IN (a ->> 'b')` and `x IN (auth.parameter('b'))` as a search in an array, because a list of one such
    value is useless."""
    if len(node.expressions) != 1:
        return
    value = node.expressions[0].unnest()
    parameter = isinstance(value, exp.Dot) and value.expression.name.lower() == "parameter"
    if parameter or isinstance(value, exp.JSONExtract | exp.JSONExtractScalar):
        node.set("expressions", None)
        node.set("field", value)


def _read_any(node: exp.EQ) -> None:
    """Read `x = ANY (array)`, which is Postgres' syntax, as `x IN array` of the rule language."""
    for value, other in ((node.this, node.expression), (node.expression, node.this)):
        if isinstance(other, exp.Any):
            node.replace(exp.In(this=value, query=other.this))
            return
        if (
            isinstance(other, exp.Anonymous)
            and str(other.this).lower() in {"any", "some"}
            and len(other.expressions) == 1
        ):
            node.replace(exp.In(this=value, field=other.expressions[0]))
            return


def _syntax_error(text: SqlText, error: ParseError) -> RuleError:
    found = error.errors[0] if error.errors else {}
    highlight = str(found.get("highlight") or "")
    end = _position(text.sql, int(found.get("line") or 1), int(found.get("col") or len(text.sql)))
    place = text.place(max(end - len(highlight), 0), end)
    near = f" near `{highlight}`" if highlight else ""
    return RuleError(Code.SQL_SYNTAX, f"the SQL cannot be parsed{near}", place, "the syntax is that of Postgres")


def _position(sql: str, line: int, column: int) -> int:
    lines = sql.split("\n")
    return min(sum(len(each) + 1 for each in lines[: line - 1]) + column, len(sql))
