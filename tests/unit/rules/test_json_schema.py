"""The JSON Schema for editors says of a config's structure what the compiler says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

import headwater_rules
from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleCode, SyncConfigError
from tests.support.command import Outcome

FILE = Path(headwater_rules.__file__).with_name("sync-config.schema.json")
SCHEMA = json.loads(FILE.read_text())
VALIDATOR = Draft202012Validator(SCHEMA)
EXAMPLES = sorted((Path(__file__).parents[3] / "sync_rules" / "examples").rglob("*.yaml"))
_OF_STRUCTURE = {RuleCode.STRUCTURE, RuleCode.OPTION, RuleCode.EDITION}

THREE = "config: {edition: 3}\n"
TWO = "config: {edition: 2}\n"
STREAM = "streams: {s: {query: SELECT id FROM t}}\n"
BUCKET = "bucket_definitions: {b: {data: [SELECT id FROM t]}}\n"


def structure_errors(text: str) -> list[str]:
    try:
        compile_config(text)
    except SyncConfigError as found:
        return [str(error) for error in found.errors if error.code in _OF_STRUCTURE]
    return []


def in_stream(settings: str) -> str:
    return f"{THREE}streams: {{s: {{{settings}}}}}\n"


def with_config(settings: str, edition: int = 3) -> str:
    return f"config: {{edition: {edition}, {settings}}}\n" + (STREAM if edition > 1 else BUCKET)


VALID = [
    THREE + STREAM,
    TWO + STREAM,
    TWO + BUCKET,
    TWO + STREAM + BUCKET,
    BUCKET,
    "config: {}\n" + BUCKET,
    "config: {edition: 1}\n" + BUCKET,
    TWO + "streams: {}\n" + BUCKET,
    BUCKET + "event_definitions: {e: {payloads: [SELECT id FROM t]}}\n",
    BUCKET + "event_definitions: {}\n",
    in_stream("queries: [SELECT id FROM t, SELECT id FROM u]"),
    in_stream("query: SELECT id FROM t, auto_subscribe: true, priority: 0, accept_potentially_dangerous_queries: true"),
    in_stream("query: SELECT id FROM t WHERE x IN c, with: {c: SELECT y FROM u}"),
    THREE + "with: {c: SELECT y FROM u}\nstreams: {s: {query: SELECT id FROM t WHERE x IN c}}\n",
    "bucket_definitions: {b: {parameters: SELECT request.user_id() u, data: [SELECT * FROM t WHERE o = bucket.u]}}\n",
    ("bucket_definitions:\n  b:\n    priority: 2\n    accept_potentially_dangerous_queries: false\n"
    "    parameters: [SELECT request.user_id() AS u]\n    data: [SELECT id FROM t WHERE o = bucket.u]\n"),
    with_config("strict: true, timestamps_iso8601: true, custom_postgres_types: false, storage_version: 2"),
    with_config("fixed_json_extract: true, versioned_bucket_ids: true, unstable_sqlite_expression_engine: true"),
    *(with_config(f"timestamp_max_precision: {name}") for name in ("seconds", "milliseconds", "nanoseconds")),
    with_config("timestamp_max_precision: seconds, timestamps_iso8601: true", 1),
    with_config("unstable_sqlite_expression_engine: false", 1),
    THREE + "streams: {}\n",
    "bucket_definitions: {}\n",
    TWO + "streams: {}\nbucket_definitions: {}\n",
    "bucket_definitions: {b: {data: []}}\n",
]  # fmt: skip
INVALID = [
    "[]\n",
    "text\n",
    "{}\n",
    THREE,
    "config: []\n" + STREAM,
    "config: {edition: 4}\n" + STREAM,
    "config: {edition: '3'}\n" + STREAM,
    STREAM,
    "config: {edition: 1}\n" + STREAM,
    THREE + BUCKET,
    THREE + STREAM + BUCKET,
    "with: {c: SELECT y FROM u}\n" + BUCKET,
    THREE + STREAM + "stream: {}\n",
    THREE + "streams: []\n",
    THREE + "streams:\n",
    THREE + "streams: {s: SELECT id FROM t}\n",
    THREE + "streams: {'': {query: SELECT id FROM t}}\n",
    THREE + STREAM + "with: []\n",
    THREE + STREAM + "with: {c: [SELECT y FROM u]}\n",
    in_stream(""),
    in_stream("queries: []"),
    in_stream("queries: SELECT id FROM t"),
    in_stream("query: [SELECT id FROM t]"),
    in_stream("query: 5"),
    in_stream("query: SELECT id FROM t, queries: [SELECT id FROM t]"),
    in_stream("query: SELECT id FROM t, priority: 4"),
    in_stream("query: SELECT id FROM t, priority: '1'"),
    in_stream("query: SELECT id FROM t, priority: true"),
    in_stream("query: SELECT id FROM t, auto_subscribe: yes"),
    in_stream("query: SELECT id FROM t, autosubscribe: true"),
    in_stream("query: SELECT id FROM t, accept_potentially_dangerous_queries: 1"),
    in_stream("query: SELECT id FROM t, with: SELECT 1"),
    in_stream("data: [SELECT id FROM t]"),
    "bucket_definitions: {b: {}}\n",
    "bucket_definitions: {b: [SELECT id FROM t]}\n",
    "bucket_definitions: {b: {data: SELECT id FROM t}}\n",
    "bucket_definitions: {b: {data: [1]}}\n",
    "bucket_definitions: {b: {data: [SELECT id FROM t], parameters: {a: b}}}\n",
    "bucket_definitions: {b: {data: [SELECT id FROM t], parameters: [1]}}\n",
    "bucket_definitions: {b: {data: [SELECT id FROM t], priority: -1}}\n",
    "bucket_definitions: {b: {data: [SELECT id FROM t], auto_subscribe: true}}\n",
    BUCKET + "event_definitions: {e: {}}\n",
    BUCKET + "event_definitions: {e: {payloads: SELECT id FROM t}}\n",
    BUCKET + "event_definitions: {e: {payloads: [SELECT id FROM t], name: x}}\n",
    with_config("editon: 3"),
    with_config("strict: 'true'"),
    with_config("storage_version: 4"),
    with_config("timestamps_iso8601: null"),
    with_config("custom_postgres_types: 0"),
    with_config("fixed_json_extract: 'no'"),
    with_config("versioned_bucket_ids: []"),
    with_config("unstable_sqlite_expression_engine: x"),
    with_config("timestamp_max_precision: days"),
    with_config("timestamp_max_precision: 3"),
    with_config("timestamp_max_precision: seconds, timestamps_iso8601: false"),
    with_config("timestamp_max_precision: seconds", 1),
    with_config("unstable_sqlite_expression_engine: true", 1),
    with_config("unstable_sqlite_expression_engine: true", 2),
]


@pytest.mark.parametrize("text", VALID)
def test_valid_configs(text: str) -> None:
    assert structure_errors(text) == []
    assert VALIDATOR.is_valid(YAML(typ="safe", pure=True).load(text))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples_are_valid(file: Path) -> None:
    assert VALIDATOR.is_valid(YAML(typ="safe", pure=True).load(file.read_text()))


@pytest.mark.parametrize("text", INVALID)
def test_invalid_configs(text: str) -> None:
    assert structure_errors(text) != []
    assert not VALIDATOR.is_valid(YAML(typ="safe", pure=True).load(text))


def test_every_key_is_described() -> None:
    closed = [SCHEMA, *(each for each in SCHEMA["$defs"].values() if each.get("additionalProperties") is False)]
    for schema in closed:
        for name, each in schema["properties"].items():
            described = each if "description" in each else SCHEMA["$defs"][each["$ref"].rpartition("/")[2]]
            assert len(described["description"]) > 10, name


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        (THREE + STREAM + "zzz: 1\n", SCHEMA),
        (with_config("zzz: 1"), SCHEMA["$defs"]["config"]),
        (in_stream("query: SELECT id FROM t, zzz: 1"), SCHEMA["$defs"]["stream"]),
        ("bucket_definitions: {b: {data: [SELECT id FROM t], zzz: 1}}", SCHEMA["$defs"]["bucket_definition"]),
        (BUCKET + "event_definitions: {e: {payloads: [], zzz: 1}}", SCHEMA["$defs"]["event_definition"]),
    ],
)
def test_schema_and_compiler_know_the_same_keys(text: str, closed: dict[str, Any]) -> None:
    with pytest.raises(SyncConfigError) as caught:
        compile_config(text)
    (error,) = caught.value.errors
    assert error.suggestion == f"the keys here are {', '.join(sorted(closed['properties']))}"


def test_command(headwater_here: Callable[..., Outcome]) -> None:
    outcome = headwater_here("rules", "json-schema")
    assert (outcome.code, outcome.out) == (0, FILE.read_text())
