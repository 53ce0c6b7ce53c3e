"""What editors are told of the language is the language: no word is missing, and each means something."""

from __future__ import annotations

import pytest

from headwater_rules.compiler.compile import findings_in
from headwater_rules.compiler.functions import KNOWN
from headwater_rules.describe.vocabulary import FUNCTIONS, KEYWORDS, PARAMETERS, ROW_FUNCTIONS, Word

STREAM = "config: {{edition: 3}}\nstreams:\n  one:\n    query: SELECT t.* FROM t WHERE {}\n"
BUCKETS = (
    "bucket_definitions:\n  one:\n    parameters: SELECT {} AS p\n    data: [SELECT * FROM t WHERE a = bucket.p]\n"
)


def test_all_functions_are_told() -> None:
    assert [word.name for word in FUNCTIONS] == sorted(KNOWN)


@pytest.mark.parametrize("word", PARAMETERS, ids=lambda word: word.name)
def test_a_value_of_the_request_can_be_written_so(word: Word) -> None:
    compared = f"a {'<' if word.name == 'now' else '='} {word.signature}"
    text = BUCKETS.format(word.signature) if word.name.startswith("request.") else STREAM.format(compared)
    assert not [found for found in findings_in(text, None) if found.severity.value != "warning"]


@pytest.mark.parametrize("word", ROW_FUNCTIONS, ids=lambda word: word.name)
def test_a_function_of_the_row_can_be_written_so(word: Word) -> None:
    text = STREAM.format(f"t.{word.signature} = auth.user_id()").replace("FROM t", 'FROM "list_%" AS t')
    assert not findings_in(text, None)


def test_keywords_can_be_written_so() -> None:
    query = (
        "SELECT t.id AS id, CASE WHEN t.a IS NULL THEN NULL ELSE CAST(t.b AS text) END AS c FROM t"
        " INNER JOIN u ON t.u = u.id"
        " WHERE u.owner = auth.user_id() AND NOT (t.b IN (1, 2) OR t.c BETWEEN 1 AND 2 OR t.d LIKE 'a%' ESCAPE '$')"
        " AND t.e IS NOT NULL AND t.f IS DISTINCT FROM 1 AND t.g IS TRUE AND t.h IS FALSE AND t.i = TRUE"
        " AND t.j = FALSE"
        " AND t.k IN ARRAY[1] AND t.l > now() - INTERVAL '1 day' "
        "AND t.o IN (SELECT v.o FROM v LEFT JOIN w ON w.id = v.w)"
    )
    text = f'config: {{edition: 3}}\nstreams:\n  one:\n    query: "{query}"\n'
    written = query + " JOIN EXISTS"  # which other tests have
    assert not [found for found in findings_in(text, None) if found.severity.value != "warning"]
    assert not [word for word in KEYWORDS if word not in written]
