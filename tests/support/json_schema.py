"""As much of JSON Schema (draft 2020-12) as our schema uses; a keyword beyond that is an error of the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

Fits = Callable[[Any, Any], bool]
_Rule = Callable[[Fits, Mapping[str, Any], Any, Any], bool]
_TYPES: dict[str, type] = {"object": dict, "array": list, "string": str, "boolean": bool}


def is_valid(schema: Mapping[str, Any], value: object) -> bool:
    """Whether a value fits the schema."""
    return _fits(schema, schema, value)


def _fits(root: Mapping[str, Any], schema: Any, value: Any) -> bool:
    if isinstance(schema, bool):
        return schema
    fits = partial(_fits, root)
    if "$ref" in schema and not fits(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], value):
        return False
    return all(_RULES[keyword](fits, schema, wanted, value) for keyword, wanted in schema.items())


def _size(kind: type[str] | type[list[Any]] | type[dict[str, Any]]) -> _Rule:
    return lambda fits, schema, least, value: not isinstance(value, kind) or len(value) >= least


def _type(fits: Fits, schema: Mapping[str, Any], wanted: Any, value: Any) -> bool:
    return any(isinstance(value, _TYPES[name]) for name in ([wanted] if isinstance(wanted, str) else wanted))


def _enum(fits: Fits, schema: Mapping[str, Any], wanted: Any, value: Any) -> bool:
    return any(value == each and type(value) is type(each) for each in wanted)


def _properties(fits: Fits, schema: Mapping[str, Any], wanted: Any, value: Any) -> bool:
    return all(fits(each, value[name]) for name, each in wanted.items() if name in _mapping(value))


def _additional(fits: Fits, schema: Mapping[str, Any], wanted: Any, value: Any) -> bool:
    return all(fits(wanted, value[name]) for name in _mapping(value).keys() - schema.get("properties", {}).keys())


def _names(fits: Fits, schema: Mapping[str, Any], wanted: Any, value: Any) -> bool:
    return all(fits(wanted, name) for name in _mapping(value))


def _required(fits: Fits, schema: Mapping[str, Any], wanted: Any, value: Any) -> bool:
    return not isinstance(value, dict) or value.keys() >= set(wanted)


def _items(fits: Fits, schema: Mapping[str, Any], wanted: Any, value: Any) -> bool:
    return not isinstance(value, list) or all(fits(wanted, item) for item in value)


def _if(fits: Fits, schema: Mapping[str, Any], wanted: Any, value: Any) -> bool:
    return not fits(wanted, value) or fits(schema["then"], value)


def _any(fits: Fits, schema: Mapping[str, Any], wanted: Any, value: Any) -> bool:
    return True


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("$schema", "$defs", "$ref", "title", "description", "default", "then"), _any),
    "type": _type,
    "enum": _enum,
    "properties": _properties,
    "additionalProperties": _additional,
    "propertyNames": _names,
    "required": _required,
    "items": _items,
    "minItems": _size(list),
    "minProperties": _size(dict),
    "minLength": _size(str),
    "if": _if,
    "not": lambda fits, schema, wanted, value: not fits(wanted, value),
    "allOf": lambda fits, schema, wanted, value: all(fits(each, value) for each in wanted),
    "anyOf": lambda fits, schema, wanted, value: any(fits(each, value) for each in wanted),
    "oneOf": lambda fits, schema, wanted, value: sum(fits(each, value) for each in wanted) == 1,
}
