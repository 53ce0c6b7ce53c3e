"""Prints geometries as PostGIS stores them (WKB and EWKB, also in hexadecimal) as GeoJSON and as WKT.

The format is small, while the libraries for it either wrap GEOS, which is larger than this whole package, or print a
fixed number of digits. Coordinates are printed with the shortest digits that read back as the same number, so that
nothing is lost and every machine prints the same.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import orjson

from headwater_rules.errors import EvaluationError
from headwater_rules.evaluate.naming import number_text
from headwater_rules.plan import Value

_MAX_DEPTH: Final = 32  # of collections within collections
_POINT, _LINE, _POLYGON, _COLLECTION = 1, 2, 3, 7
_NAMES: Final = dict(
    enumerate(
        ("Point", "LineString", "Polygon", "MultiPoint", "MultiLineString", "MultiPolygon", "GeometryCollection"), 1
    )
)
_Z, _M, _SRID = 0x8000_0000, 0x4000_0000, 0x2000_0000

Point = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Geometry:
    """`points` are those of a point or a line, `rings` those of a polygon, `parts` the members of all others."""

    kind: int
    has_z: bool
    has_m: bool
    points: tuple[Point, ...] = ()
    rings: tuple[tuple[Point, ...], ...] = ()
    parts: tuple[_Geometry, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.points or self.rings or self.parts)


def as_geojson(value: Value) -> str | None:
    """The geometry object of RFC 7946, without a reference system (which the RFC fixes) and without measures."""
    geometry = _read(value)
    return None if geometry is None else orjson.dumps(_json(geometry)).decode()


def as_wkt(value: Value) -> str | None:
    """Well-known text without the reference system: `POINT Z (1 2 3)`."""
    geometry = _read(value)
    return None if geometry is None else _tagged(geometry)


def coordinate(value: Value, number: int) -> float | None:
    """The first (0) or second coordinate of a point; null for everything else."""
    geometry = _read(value)
    return geometry.points[0][number] if geometry and geometry.kind == _POINT and geometry.points else None


def _read(value: Value) -> _Geometry | None:
    if value is None:
        return None
    try:
        data = binascii.unhexlify(value) if isinstance(value, str) else value
        if not isinstance(data, bytes):
            raise ValueError
        reader = _Reader(data)
        geometry = reader.geometry(0)
        if not reader.at_end:
            raise ValueError
    except (ValueError, struct.error):
        raise EvaluationError("not a geometry in WKB or EWKB of a known type") from None
    return geometry


class _Reader:
    """Reads geometries from bytes. Raises ValueError or struct.error for invalid ones."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def geometry(self, depth: int) -> _Geometry:
        order = self._data[self._at : self._at + 1]
        if order not in {b"\0", b"\1"} or depth > _MAX_DEPTH:
            raise ValueError
        self._at += 1
        byte_order = "<" if order == b"\1" else ">"
        code = self._count(byte_order)
        if code & _SRID:
            self._at += 4
        flags, kind = divmod(code & 0x0FFF_FFFF, 1000)  # ISO adds 1000 for Z, 2000 for M
        if kind not in _NAMES or flags > 3:
            raise ValueError
        has_z, has_m = bool(code & _Z) or flags in {1, 3}, bool(code & _M) or flags in {2, 3}
        size = 2 + has_z + has_m
        if kind == _POINT:
            point = self._points(byte_order, size, 1)
            # PostGIS writes an empty point as NaN
            return _Geometry(kind, has_z, has_m, () if point[0][0] != point[0][0] else point)
        count = self._count(byte_order)
        if kind == _LINE:
            return _Geometry(kind, has_z, has_m, self._points(byte_order, size, count))
        if kind == _POLYGON:
            rings = tuple(self._points(byte_order, size, self._count(byte_order)) for _ in range(count))
            return _Geometry(kind, has_z, has_m, rings=rings)
        parts = tuple(self.geometry(depth + 1) for _ in range(count))
        if kind != _COLLECTION and any(part.kind != kind - 3 for part in parts):
            raise ValueError
        return _Geometry(kind, has_z, has_m, parts=parts)

    def _count(self, byte_order: str) -> int:
        found: int = struct.unpack_from(f"{byte_order}I", self._data, self._at)[0]
        self._at += 4
        return found

    def _points(self, byte_order: str, size: int, count: int) -> tuple[Point, ...]:
        if count * size * 8 > len(self._data) - self._at:
            raise ValueError
        numbers = struct.unpack_from(f"{byte_order}{count * size}d", self._data, self._at)
        self._at += count * size * 8
        return tuple(zip(*[iter(numbers)] * size, strict=True))


def _json(geometry: _Geometry) -> dict[str, object]:
    name = _NAMES[geometry.kind]
    if geometry.kind == _COLLECTION:
        return {"type": name, "geometries": [_json(part) for part in geometry.parts]}
    return {"type": name, "coordinates": _coordinates(geometry)}


def _coordinates(geometry: _Geometry) -> list[object]:
    size = 3 if geometry.has_z else 2
    points: list[object] = [_numbers(point[:size]) for point in geometry.points]
    if geometry.kind == _POINT:
        return _numbers(geometry.points[0][:size]) if geometry.points else []
    if geometry.kind == _LINE:
        return points
    if geometry.kind == _POLYGON:
        return [[_numbers(point[:size]) for point in ring] for ring in geometry.rings]
    return [_coordinates(part) for part in geometry.parts]


def _numbers(point: Iterable[float]) -> list[object]:
    return [int(number) if number.is_integer() and abs(number) < 2**53 else number for number in point]


def _tagged(geometry: _Geometry) -> str:
    dimensions = f" {'Z' * geometry.has_z}{'M' * geometry.has_m} " if geometry.has_z or geometry.has_m else ""
    return f"{_NAMES[geometry.kind].upper()}{dimensions or ' ' * geometry.empty}{_body(geometry)}"


def _body(geometry: _Geometry) -> str:
    if geometry.empty:
        return "EMPTY"
    if geometry.kind == _COLLECTION:
        return f"({','.join(_tagged(part) for part in geometry.parts)})"
    if geometry.kind == _POLYGON:
        return f"({','.join(_listed(ring) for ring in geometry.rings)})"
    if geometry.parts:
        return f"({','.join(_body(part) for part in geometry.parts)})"
    return _listed(geometry.points)


def _listed(points: Iterable[Point]) -> str:
    return f"({','.join(' '.join(map(number_text, point)) for point in points)})"
