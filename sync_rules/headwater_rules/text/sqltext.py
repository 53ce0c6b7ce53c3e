"""The SQL of a query: its parse tree, and the positions of the tree's nodes in the file."""

from __future__ import annotations

import logging
import re
from typing import ClassVar

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import Token, TokenType

from headwater_rules.errors import Edit, RuleCode, RuleError, Severity, Span
from headwater_rules.text.document import AS_BLOCK
from headwater_rules.text.slips import refuse_slips, syntax_error
from headwater_rules.text.written import SqlText

_HEXADECIMAL = re.compile(r"\\[xuU]")
_TEXT = "text"  # where the root of a tree holds the text that it was parsed from
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


def _parse_interval_span(parser: PostgresParser, this: exp.Expr, parse_function_unit: bool = True) -> exp.Interval:
    # sqlglot would split the text into a number and a unit, and drop what follows: `'1 day 02:00'`, `'1 day ago'`
    unit = None
    if parser._curr and parser._curr.text.upper() in parser.dialect.VALID_INTERVAL_UNITS:
        unit = exp.Var(this=parser._curr.text)
        parser._advance()
    return parser.expression(exp.Interval(this=this, unit=unit))


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
        _parse_interval_span = _parse_interval_span
        LAMBDAS: ClassVar = {}  # `f(x -> 'k')` is an access to JSON
        RANGE_PARSERS = {**PostgresParser.RANGE_PARSERS, TokenType.IN: _parse_in}
        JSON_OPERATORS = {
            TokenType.ARROW: lambda self, this, key: self.expression(exp.JSONExtract(this=this, expression=key)),
            TokenType.DARROW: lambda self, this, key: self.expression(exp.JSONExtractScalar(this=this, expression=key)),
        }


RuleDialect.Tokenizer._COMMENTS.pop("{#")  # sqlglot knows comments of templates, which are no SQL


def text_of(node: exp.Expr) -> SqlText:
    """The text that a node was parsed from."""
    text: SqlText = node.root().meta[_TEXT]
    return text


def span_of(node: exp.Expr) -> Span:
    """The span of a node of a parsed SELECT in the file; of the SELECT itself, the whole text."""
    return text_of(node).span_of(node) if node.parent is not None else text_of(node).span()


def error_at(
    code: RuleCode,
    message: str,
    node: exp.Expr,
    suggestion: str = "",
    severity: Severity = Severity.FATAL,
    edit: Edit | None = None,
) -> RuleError:
    """An error or warning about a node of a parsed SELECT."""
    return RuleError(code, message, span_of(node), suggestion, severity, edit)


def unsupported(message: str, node: exp.Expr, suggestion: str = "", edit: Edit | None = None) -> RuleError:
    return error_at(RuleCode.UNSUPPORTED, message, node, suggestion, edit=edit)


def warning_at(code: RuleCode, message: str, node: exp.Expr, suggestion: str, edit: Edit | None = None) -> RuleError:
    return error_at(code, message, node, suggestion, Severity.WARNING, edit)


def edit_of(node: exp.Expr, replacement: str, behind: str = "") -> Edit | None:
    """The edit that replaces the SQL of a node, and the text after it that the pattern `behind` matches. None where the
    position of the node is not known, or where YAML would change the replacement."""
    text = text_of(node)
    found = text.position_of(node)
    if found is None:
        return None
    after = re.compile(behind).match(text.sql, found[1])
    return text.edit(found[0], found[1] if after is None else after.end(), replacement)


def selecting_nothing(node: exp.Select) -> exp.Select:
    """A copy of a SELECT within another one, with an empty select list."""
    bare = node.copy()
    bare.set("expressions", [])
    bare.meta[_TEXT] = text_of(node)
    return bare


def identifier(node: exp.Expr) -> str:
    """The name that an identifier means: unquoted ones are converted to lower case."""
    return str(node.name) if node.args.get("quoted") else str(node.name).lower()


def parse_select(text: SqlText) -> exp.Select:
    """The one SELECT in `text`. Raises RuleError for anything else."""
    if len(text.sql) > MAX_SQL:
        raise RuleError(RuleCode.TOO_MANY, f"a query is longer than {MAX_SQL:,} characters", text.span())
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns about statements that are refused below
    dialect = RuleDialect()
    tokens: list[Token] = []
    try:
        tokens = dialect.tokenize(text.sql)
        _check_tokens(text, tokens)
        refuse_slips(text, tokens)
        statements = [statement for statement in dialect.parser().parse(tokens, text.sql) if statement]
    except ParseError as error:
        raise _syntax_error(text, tokens, error) from None
    except TokenError:
        message = "the SQL ends inside a quoted text or comment"
        raise RuleError(RuleCode.SQL_SYNTAX, message, text.span(), "close the quote") from None
    except RecursionError:
        raise RuleError(RuleCode.TOO_MANY, "the SQL is nested too deeply", text.span(), "nest fewer brackets") from None
    if not statements:
        raise RuleError(RuleCode.SQL_SYNTAX, "the query is empty", text.span(), "write a SELECT statement")
    if len(statements) > 1:
        message, hint = "only one statement is allowed in a query", "list further statements under `queries`"
        raise RuleError(RuleCode.UNSUPPORTED, message, text.span_of(statements[1]), hint)
    statement = statements[0]
    if not isinstance(statement, exp.Select):
        hint = "combine several SELECT statements by listing them under `queries`"
        raise RuleError(RuleCode.UNSUPPORTED, "expected a SELECT statement", text.span_of(statement), hint)
    statement.meta[_TEXT] = text
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
            raise RuleError(RuleCode.CHANGED, message, text.span(token.start, behind), AS_BLOCK)
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
            raise RuleError(RuleCode.SQL_SYNTAX, message, text.span(position, position + 1), hint)


def _check_comments(text: SqlText, start: int, end: int) -> None:
    """`start` and `end` delimit white space and comments."""
    for position in range(start, end):
        offset = text.written.offsets[position]
        if text.sql[position] in "-/*\n" and _HEXADECIMAL.match(text.document, offset):
            message = "an escape stands for a part of a comment"
            raise RuleError(RuleCode.CHANGED, message, text.span(position, position + 1), AS_BLOCK)


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
        called = str(other.this).lower() if isinstance(other, exp.Anonymous) else ""
        if called in {"any", "some"} and len(other.expressions) == 1:
            node.replace(exp.In(this=value, field=other.expressions[0]))
            return


def _syntax_error(text: SqlText, tokens: list[Token], error: ParseError) -> RuleError:
    found = error.errors[0] if error.errors else {}
    highlight = str(found.get("highlight") or "")
    end = _position(text.sql, int(found.get("line") or 1), int(found.get("col") or len(text.sql)))
    return syntax_error(text, tokens, (max(end - len(highlight), 0), end))


def _position(sql: str, line: int, column: int) -> int:
    return min(sum(len(each) + 1 for each in sql.split("\n")[: line - 1]) + column, len(sql))
