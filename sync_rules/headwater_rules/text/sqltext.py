"""SQL inside the YAML: its text as the author wrote it, its parse tree, and the positions of the tree's nodes.

YAML joins the lines of a folded, plain or quoted scalar, and begins a comment at ` #`. SQL ends a comment where the
line ends, so the value that YAML gives can mean something else than the text that the author sees. Therefore the lines
are kept, and a text that YAML cuts off is refused.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ruamel.yaml.nodes import MappingNode, ScalarNode
from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import Token, TokenType

from headwater_rules.errors import RuleCode, RuleError, Severity, Span, span_in
from headwater_rules.text.document import AS_BLOCK, SELECT, YamlItem, escape_at

_PROPERTIES = re.compile(r"(?:[&!]\S*+(?:\s++(?:#.*+)?+)*+)*+")
_HEADER = re.compile(r"[|>][-+0-9]*+[ \t]*+(?:#.*+)?+\r?\n?")
_CUT = re.compile(r"[ \t]++(#[^\r\n]*+)")
_UNCLEAR = re.compile("\r(?!\n)|[\x85\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SHORT_ESCAPES = {"n": "\n", "t": "\t", "\t": "\t", "r": "\r", '"': '"', "\\": "\\", "/": "/", " ": " "}


@dataclass(frozen=True, slots=True)
class ScalarText:
    """`text` has the line ends of the file. `offsets` are the positions of its characters in the document, and `joined`
    those line ends in `text` that YAML replaces by a space or removes."""

    text: str
    offsets: Sequence[int]
    joined: frozenset[int]


def read_written(document: str, node: ScalarNode) -> ScalarText:
    """The text of a scalar. Raises RuleError for one that YAML cuts off, or that an editor shows in another way."""
    start, end = node.start_mark.index, node.end_mark.index
    start = _end(_PROPERTIES, document, start, end)
    unclear = _UNCLEAR.search(document, start, end)
    if unclear:
        message = f"the character U+{ord(unclear[0]):04X} in a query makes editors show its lines in different ways"
        raise RuleError(RuleCode.CHANGED, message, span_in(document, *unclear.span()), "remove it")
    if node.style == "|":
        return _literal(document, _end(_HEADER, document, start, end), str(node.value))
    if node.style is None and (cut := _CUT.match(document, end)):
        message = "YAML reads ` #` and what follows as a comment, so it is no part of the query"
        hint = f"put the comment on a line of its own; if it belongs to the SQL, {AS_BLOCK}"
        raise RuleError(RuleCode.CHANGED, message, span_in(document, *cut.span(1)), hint)
    if node.style == ">":
        start = _end(_HEADER, document, start, end)
    elif node.style is not None:
        start, end = start + 1, end - 1
    written = _collected(_characters(document, start, end, node.style))
    if "".join(written.text.split()) != "".join(str(node.value).split()):
        raise RuleError(RuleCode.CHANGED, "YAML changes this query", span_in(document, start, end), AS_BLOCK)
    return written


def _end(pattern: re.Pattern[str], document: str, start: int, end: int) -> int:
    found = pattern.match(document, start, end)
    return start if found is None else found.end()


def _literal(document: str, position: int, value: str) -> ScalarText:
    """A literal block, which differs from its value in the indentation only."""
    offsets = array("l")
    for line in value.split("\n"):
        line_end = document.find("\n", position)
        line_end = len(document) if line_end < 0 else line_end
        shown = line_end - (document[line_end - 1 : line_end] == "\r")
        offsets.extend(range(shown - len(line), shown))
        offsets.append(line_end)
        position = line_end + 1
    return ScalarText(value, offsets[:-1], frozenset())


def _collected(characters: Iterator[tuple[str, int, bool]]) -> ScalarText:
    pieces: list[str] = []
    offsets = array("l")
    joined: list[int] = []
    for character, offset, is_joined in characters:
        if is_joined:
            joined.append(len(pieces))
        pieces.append(character)
        offsets.append(offset)
    return ScalarText("".join(pieces), offsets, frozenset(joined))


def _characters(document: str, position: int, end: int, style: str | None) -> Iterator[tuple[str, int, bool]]:
    """The characters of a folded, plain or quoted scalar, their offsets, and whether they are line ends of the file."""
    while position < end:
        character, start = document[position], position
        position += 1
        if character == "\r":
            continue  # the line feed follows
        if character == "'" and style == "'":
            position += 1
        elif character == "\\" and style == '"':
            character, position = _escaped(document, start, end)
        yield character, start, character == "\n" and document[start] == "\n"


def _escaped(document: str, start: int, end: int) -> tuple[str, int]:
    meant, after = escape_at(document, start, end)
    if meant in {"'", '"'}:
        message, meant = "the quote of a text is hidden in an escape", ""
    else:
        message = f"the escape `{document[start:after].strip()}` is not supported in a query"
        meant = meant or _SHORT_ESCAPES.get(document[start + 1], "")
    if meant == "\r" and document.startswith("\\n", after):
        return "\n", after + 2
    if not meant or (meant < " " and meant not in "\t\n"):
        raise RuleError(RuleCode.CHANGED, message, span_in(document, start, after), AS_BLOCK)
    return meant, after


_CLOSING = re.compile(r"\s*\)")
_WORD = re.compile(r"\w+|[^\w\s]")
_WORDS_PER_QUERY = 10  # what each costs besides its words
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


@dataclass(frozen=True, slots=True)
class SqlText:
    """An SQL string. `sql` has the lines of the file; `start` and `end` delimit the scalar in `document`."""

    document: str
    start: int
    end: int
    written: ScalarText

    @property
    def sql(self) -> str:
        return self.written.text

    def words(self) -> int:
        """Approximate number of words and signs, and so of the work that the text causes."""
        return sum(1 for _ in _WORD.finditer(self.sql)) + _WORDS_PER_QUERY

    def span(self, start: int = 0, end: int | None = None) -> Span:
        """The span of characters [start, end) of the SQL in the file."""
        if not self.sql:
            return span_in(self.document, self.start, self.end)
        last = max((len(self.sql) if end is None else end) - 1, start)
        return span_in(self.document, self._offset(start), self._offset(last) + 1)

    def span_of(self, node: exp.Expr) -> Span:
        """The span of a node, or of its nearest ancestor with a position."""
        found = self._span(node)
        while found is None and node.parent is not None:
            node = node.parent
            found = self._span(node)
        return self.span(*found) if found else self.span()

    def source_of(self, node: exp.Expr) -> str:
        """The SQL of a node, on one line."""
        found = self._span(node)
        return " ".join(self.sql[slice(*found)].split()) if found else ""

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


def read_sql(item: YamlItem, what: str) -> SqlText:
    """The SQL that a YAML node holds. Raises RuleError for a node that is no text."""
    node = item.node
    if isinstance(node, MappingNode) and SELECT.match(item.text, node.start_mark.index):
        raise item.fail(f"{what} must be a text, and YAML reads `: ` as the end of a key", AS_BLOCK, RuleCode.CHANGED)
    item.string(what)
    assert isinstance(node, ScalarNode)  # it has been read as a text
    return SqlText(item.text, node.start_mark.index, node.end_mark.index, read_written(item.text, node))


def text_of(node: exp.Expr) -> SqlText:
    """The text that a node was parsed from."""
    text: SqlText = node.root().meta[_TEXT]
    return text


def span_of(node: exp.Expr) -> Span:
    """The span of a node of a parsed SELECT in the file; of the SELECT itself, the whole text."""
    return text_of(node).span_of(node) if node.parent is not None else text_of(node).span()


def error_at(
    code: RuleCode, message: str, node: exp.Expr, suggestion: str = "", severity: Severity = Severity.FATAL
) -> RuleError:
    """An error or warning about a node of a parsed SELECT."""
    return RuleError(code, message, span_of(node), suggestion, severity)


def unsupported(message: str, node: exp.Expr, suggestion: str = "") -> RuleError:
    return error_at(RuleCode.UNSUPPORTED, message, node, suggestion)


def warning_at(code: RuleCode, message: str, node: exp.Expr, suggestion: str) -> RuleError:
    return error_at(code, message, node, suggestion, Severity.WARNING)


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
    try:
        tokens = dialect.tokenize(text.sql)
        _check_tokens(text, tokens)
        statements = [statement for statement in dialect.parser().parse(tokens, text.sql) if statement]
    except ParseError as error:
        raise _syntax_error(text, error) from None
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


def _syntax_error(text: SqlText, error: ParseError) -> RuleError:
    found = error.errors[0] if error.errors else {}
    highlight = str(found.get("highlight") or "")
    end = _position(text.sql, int(found.get("line") or 1), int(found.get("col") or len(text.sql)))
    span = text.span(max(end - len(highlight), 0), end)
    near = f" near `{highlight}`" if highlight else ""
    return RuleError(RuleCode.SQL_SYNTAX, f"the SQL cannot be parsed{near}", span, "the syntax is that of Postgres")


def _position(sql: str, line: int, column: int) -> int:
    return min(sum(len(each) + 1 for each in sql.split("\n")[: line - 1]) + column, len(sql))
