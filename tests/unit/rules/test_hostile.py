"""No text makes the compiler take much memory or time: it compiles, or is refused."""

from __future__ import annotations

import multiprocessing
import resource
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleCode, SyncConfigError
from tests.unit.rules.rules_store import errors_of

HEAD = "config: {edition: 3}\nstreams:\n"
MEGABYTE = 1_000_000
MOST_MEMORY, MOST_CPU = 300, 60
"""Megabytes and seconds of a process, a multiple of what each of these takes on an idle machine."""

# Processes are copies of one that has the compiler and nothing else: to start each anew takes longer than most texts
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.unit.rules.test_hostile"])


def child(text: str, told: Connection) -> None:
    """Tell how long what the compiler says is, and how many megabytes the process had at most."""
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU, MOST_CPU))
    try:
        said = [each.render() for each in compile_config(text, advise=True).warnings]
    except SyncConfigError as errors:
        said = [errors.render(), str(errors.to_dict())]
    # Not getrusage: it counts what the process was before it became this one, too
    (most,) = [line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line]
    told.send((sum(map(len, said)), int(most.split()[1]) // 1024))


def query(condition: str) -> str:
    return f"{HEAD}  s:\n    query: |\n      SELECT * FROM t WHERE {condition}\n"


def each_stream(count: int, line: str) -> str:
    return HEAD + "".join(f"  s{number}: {line}\n" for number in range(count))


def repeated(condition: str) -> str:
    return f"{HEAD}  s:\n    queries:\n    - &q SELECT * FROM t WHERE {condition}\n" + "    - *q\n" * 4_900


def any_of(count: int, condition: str) -> str:
    return " OR ".join(condition.format(number) for number in range(count))


def doubled(times: int, table: str) -> str:
    """A subquery whose column `x` is a sum of 2^times columns."""
    inner = f"SELECT a AS x FROM {table}"
    for number in range(times):
        inner = f"SELECT x || x AS x FROM ({inner}) AS d{number}"
    return f"({inner}) AS d"


LAUGHS = "".join(
    f"x{number}: &x{number} [{', '.join([f'*x{number - 1}' if number else 'ha'] * 9)}]\n" for number in range(12)
)
SHAPES = {
    "aliases of aliases": LAUGHS + query("1"),
    "one query by many aliases": repeated(any_of(3_000, "a = {}")),
    "one wrong query by many aliases": repeated(any_of(1_500, "nonsense(a)")),
    "a stream of many queries by many aliases": HEAD
    + "  s: &s\n    queries:\n"
    + "".join(f"    - SELECT a{number} FROM t\n" for number in range(1_000))
    + "".join(f"  s{number}: *s\n" for number in range(4_000)),
    "a long query used by many streams": "config: {edition: 3}\n"
    f"with: {{c: SELECT a FROM m WHERE {any_of(200, 'a = {}')}}}\n"
    + each_stream(4_000, "{query: SELECT * FROM t WHERE a IN c}").partition("\n")[2],
    "3,000 terms": query(any_of(3_000, "a{0} = {0}")),
    "3,000 terms with AND": query(any_of(3_000, "a{0} = {0}").replace(" OR ", " AND ")),
    "3,000 wrong terms": query(any_of(3_000, "nonsense(a{})")),
    "2,000 terms of the token": query(any_of(2_000, "a{0} = auth.parameter('p{0}')")),
    "a list of columns": query(f"auth.user_id() IN ({', '.join(f'a{number}' for number in range(14_000))})"),
    "a list of numbers": query(f"a IN ({', '.join(map(str, range(14_000)))})"),
    "brackets": query("(" * 40_000 + "1" + ")" * 40_000),
    "denials": query("NOT " * 20_000 + "1"),
    "texts that grow in constant conditions": each_stream(
        200, f"{{query: \"SELECT * FROM t WHERE length({'hex(' * 21}'abcdefgh'{')' * 21}) = 1\"}}"
    ),
    "a sum": query("a" + " + a" * 20_000),
    "a doubled column in many conditions": query(
        "t.id = d.x AND " + " AND ".join(f"d.x = {number}" for number in range(2_000))
    ).replace("FROM t", f"FROM t, {doubled(12, 'u')}"),
    "a doubled column selected many times": query("1").replace(
        "* FROM t", f"{', '.join(f'd.x AS c{number}' for number in range(2_000))} FROM {doubled(13, 't')}"
    ),
    "a doubled column in many queries": each_stream(
        600, f"{{query: SELECT * FROM t WHERE a IN (SELECT x FROM {doubled(12, 'u')} WHERE x = 1 AND x != 'b')}}"
    ),
    "comments in comments": query("/*" * 20_000 + "*/" * 20_000 + " 1"),
    "joins": query("1").replace("FROM t", "FROM t " + " ".join(f"JOIN j{n} ON j{n}.a = t.b" for n in range(3_000))),
    "many queries with many joins": HEAD
    + "".join(
        f"  s{number}:\n    query: SELECT t.* FROM t {' '.join(f'JOIN j{n} ON j{n}.a = t.b{n}' for n in range(90))}\n"
        for number in range(130)
    ),
    "many streams of many ways": HEAD
    + "".join(
        f"  s{number}:\n    query: SELECT * FROM t WHERE {any_of(99, f'a{{0}} = auth.parameter({number})')}\n"
        for number in range(110)
    ),
    "many tests that every row passes": HEAD
    + "".join(
        f"  s{number}:\n    auto_subscribe: true\n    query: SELECT * FROM t WHERE a = {number} OR a IS NULL OR b = b"
        " OR b IS NULL\n"
        for number in range(3_500)
    ),
    "parameters times data": "bucket_definitions:\n  b:\n    parameters:\n"
    + "".join(f"    - SELECT a{n} AS x FROM t WHERE o = request.user_id()\n" for n in range(70))
    + "    data:\n"
    + "".join(f"    - SELECT * FROM d{n} WHERE a = bucket.x\n" for n in range(70)),
    "100,000 streams": each_stream(100_000, "{query: SELECT * FROM t}"),
    "as many streams as may stand in a file": each_stream(15_000, "{query: SELECT a}"),
    "wrong streams": each_stream(29_000, "1"),
    "unknown keys": "".join(f"key{number}: 1\n" for number in range(29_000)),
    "one key again and again": HEAD + "  s: 1\n" * 56_000,
    "one line": "{config: {edition: 3}, streams: {"
    + ", ".join(f"s{n}: {{query: SELECT nonsense(a) FROM t}}" for n in range(9_000))
    + "}}",
    "one long text": query(f"a = '{'x' * MEGABYTE}'"),
    "long names": query(f"{'b' * 45_000} = 1 AND s.{'c' * 45_000} = 1"),
    "escapes": f'{HEAD}  s:\n    query: "{chr(92)}x41' * 60_000,
    "anchors": "".join(f"- &a{number} x\n" for number in range(28_000)),
    "documents": "---\n" * 95_000,
    "lists in lists": "- " * 190_000,
    "braces": "{" * 390_000,
    "colons": "a: " * 130_000,
    "tags": "!a " * 130_000,
    "lines": "\n" * MEGABYTE,
    "quotes": "a: '" + "''" * 190_000,
}


LONG = {
    "a long query used by many streams",
    "a doubled column in many queries",
    "many tests that every row passes",
    "many queries with many joins",
}


@pytest.mark.parametrize(
    "shape", [pytest.param(shape, marks=[pytest.mark.long] if shape in LONG else []) for shape in SHAPES]
)
def test_hostile_text(shape: str) -> None:
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=child, args=(SHAPES[shape], theirs))
    process.start()
    theirs.close()
    try:
        said, memory = ours.recv()
    finally:
        process.join()
        ours.close()
    assert memory < MOST_MEMORY
    assert said < 10 * MEGABYTE


def test_text_limit() -> None:
    (error,) = errors_of(each_stream(100_000, "{query: SELECT * FROM t}")).errors
    assert (error.code, error.message) == (RuleCode.YAML, "the sync config is longer than 400,000 characters")


def test_error_limit() -> None:
    errors = errors_of(each_stream(4_000, "{query: SELECT nonsense(a) FROM t}")).errors
    assert len(errors) == 1_001
    assert (errors[-1].code, errors[-1].span) == (RuleCode.TOO_MANY, None)
    assert {error.code for error in errors[:-1]} == {RuleCode.UNKNOWN_FUNCTION}


def test_thousands_of_queries_compile() -> None:
    plan = compile_config(each_stream(4_000, "{query: SELECT a FROM t WHERE o = auth.user_id()}")).plan
    assert len(plan.streams) == 4_000


def test_errors_keep_no_compiler() -> None:
    for error in errors_of(query("nonsense(a) AND x.y = 1")).errors:
        assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)


def test_place_of_a_long_line() -> None:
    (error,) = errors_of(query(f"nonsense('{'x' * 50_000}')")).errors
    place = error.to_dict()["place"]
    assert isinstance(place, dict)
    assert len(str(place["source_line"])) == len(str(place["text"])) == 1_000
