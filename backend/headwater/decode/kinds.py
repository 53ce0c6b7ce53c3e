"""The kind of SQLite value that a type is converted to. Has to agree with `values`."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.decode.builtin import Oid
from headwater.decode.catalog import BUILTIN_TYPES, TypeCatalog, TypeKind
from headwater_rules.schema import ValueKind

_SCALARS: dict[int, ValueKind] = {
    **dict.fromkeys((Oid.BOOL, Oid.INT2, Oid.INT4, Oid.INT8, Oid.OID), ValueKind.INTEGER),
    **dict.fromkeys((Oid.FLOAT4, Oid.FLOAT8), ValueKind.REAL),
    **dict.fromkeys((Oid.JSON, Oid.JSONB), ValueKind.JSON),
    Oid.BYTEA: ValueKind.BLOB,
}


@dataclass(frozen=True, slots=True)
class TypeValues:
    """The `kind` of a type's values, and of the `elements` of an array. `by_option`: only with the option
    `custom_postgres_types`; without it, values are text."""

    kind: ValueKind
    elements: ValueKind | None = None
    by_option: bool = False


def values_of(oid: int, types: TypeCatalog) -> TypeValues:
    """The kind of value that a type is converted to."""
    descriptor = types.get(oid)
    if descriptor is None:
        return TypeValues(ValueKind.TEXT)
    match descriptor.kind:
        case TypeKind.DOMAIN:
            base = values_of(descriptor.element, types)
            return TypeValues(base.kind, base.elements, by_option=base.kind is not ValueKind.TEXT)
        case TypeKind.ARRAY:
            elements = values_of(descriptor.element, types).kind
            return TypeValues(ValueKind.JSON, elements, by_option=descriptor.element not in BUILTIN_TYPES)
        case TypeKind.COMPOSITE | TypeKind.RANGE | TypeKind.MULTIRANGE:
            return TypeValues(ValueKind.JSON, by_option=True)
        case _:
            return TypeValues(_SCALARS.get(oid, ValueKind.TEXT))
