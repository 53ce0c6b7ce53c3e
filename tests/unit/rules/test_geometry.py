"""Geometries in WKB and EWKB, printed as GeoJSON and as WKT."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_rules.plan import Value
from tests.support.examples import examples
from tests.unit.rules.rules_values import evaluate, failure_of, same, value_of


def wkb(kind: int, body: bytes, order: str = "<", srid: int | None = None) -> bytes:
    head = struct.pack(f"{order}BI", order == "<", kind | (0x2000_0000 if srid is not None else 0))
    return head + (b"" if srid is None else struct.pack(f"{order}I", srid)) + body


def numbers(*values: float, order: str = "<") -> bytes:
    return struct.pack(f"{order}{len(values)}d", *values)


def several(*parts: bytes) -> bytes:
    return struct.pack("<I", len(parts)) + b"".join(parts)


Z, M, NAN = 0x8000_0000, 0x4000_0000, float("nan")
POINT = wkb(1, numbers(1, 2))
LINE = wkb(2, several(numbers(1, 2), numbers(3, 4.5)))
POLYGON = wkb(3, several(several(*[numbers(*p) for p in [(0, 0), (9, 0), (9, 9), (0, 0)]]),
                         several(*[numbers(*p) for p in [(1, 1), (2, 1), (2, 2), (1, 1)]])))  # fmt: skip
SQUARE = "((0 0,9 0,9 9,0 0),(1 1,2 1,2 2,1 1))"
SQUARE_JSON = "[[[0,0],[9,0],[9,9],[0,0]],[[1,1],[2,1],[2,2],[1,1]]]"


NOTHING = '{"type":"GeometryCollection","geometries":[]}'


@pytest.mark.parametrize(
    ("geometry", "text", "geojson"),
    [
        (POINT, "POINT(1 2)", '{"type":"Point","coordinates":[1,2]}'),
        (wkb(1, numbers(1, 2, order=">"), ">"), "POINT(1 2)", '{"type":"Point","coordinates":[1,2]}'),
        (wkb(1, numbers(1, 2), srid=4326), "POINT(1 2)", '{"type":"Point","coordinates":[1,2]}'),
        (
            wkb(1, numbers(-71.064544, 0.1 + 0.2)),
            "POINT(-71.064544 0.30000000000000004)",  # every digit, where PostGIS rounds
            '{"type":"Point","coordinates":[-71.064544,0.30000000000000004]}',
        ),
        (wkb(1, numbers(1e-7, -0.0)), "POINT(1e-7 0)", '{"type":"Point","coordinates":[1e-7,0]}'),
        (wkb(1 | Z, numbers(1, 2, 3)), "POINT Z (1 2 3)", '{"type":"Point","coordinates":[1,2,3]}'),
        (wkb(1001, numbers(1, 2, 3)), "POINT Z (1 2 3)", '{"type":"Point","coordinates":[1,2,3]}'),
        (wkb(1 | M, numbers(1, 2, 3)), "POINT M (1 2 3)", '{"type":"Point","coordinates":[1,2]}'),
        (wkb(1 | Z | M, numbers(1, 2, 3, 4)), "POINT ZM (1 2 3 4)", '{"type":"Point","coordinates":[1,2,3]}'),
        (wkb(3001, numbers(1, 2, 3, 4)), "POINT ZM (1 2 3 4)", '{"type":"Point","coordinates":[1,2,3]}'),
        (wkb(1, numbers(NAN, NAN)), "POINT EMPTY", '{"type":"Point","coordinates":[]}'),
        (wkb(1 | Z, numbers(NAN, NAN, NAN)), "POINT Z EMPTY", '{"type":"Point","coordinates":[]}'),
        (LINE, "LINESTRING(1 2,3 4.5)", '{"type":"LineString","coordinates":[[1,2],[3,4.5]]}'),
        (wkb(2, several()), "LINESTRING EMPTY", '{"type":"LineString","coordinates":[]}'),
        (POLYGON, f"POLYGON{SQUARE}", f'{{"type":"Polygon","coordinates":{SQUARE_JSON}}}'),
        (
            wkb(4, several(POINT, wkb(1, numbers(3, 4)))),
            "MULTIPOINT((1 2),(3 4))",
            '{"type":"MultiPoint","coordinates":[[1,2],[3,4]]}',
        ),
        (
            wkb(5, several(LINE, wkb(2, several()))),
            "MULTILINESTRING((1 2,3 4.5),EMPTY)",
            '{"type":"MultiLineString","coordinates":[[[1,2],[3,4.5]],[]]}',
        ),
        (
            wkb(6, several(POLYGON), srid=3857),
            f"MULTIPOLYGON({SQUARE})",
            f'{{"type":"MultiPolygon","coordinates":[{SQUARE_JSON}]}}',
        ),
        (
            wkb(7 | Z, several(wkb(1 | Z, numbers(1, 2, 3)), wkb(7, several()))),
            "GEOMETRYCOLLECTION Z (POINT Z (1 2 3),GEOMETRYCOLLECTION EMPTY)",
            f'{{"type":"GeometryCollection","geometries":[{{"type":"Point","coordinates":[1,2,3]}},{NOTHING}]}}',
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_printed_geometry(geometry: bytes, text: str, geojson: str) -> None:
    for value in (geometry, geometry.hex(), geometry.hex().upper()):
        assert value_of("st_astext(a)", value) == text
        assert value_of("st_asgeojson(a)", value) == geojson


def test_postgis_form() -> None:
    # SELECT ST_SetSRID(ST_MakePoint(-71.06, 42.28), 4326)
    point = "0101000020E6100000A4703D0AD7C351C0A4703D0AD7234540"
    assert value_of("st_x(a)", point) == -71.06
    assert value_of("st_y(a)", point) == 42.28


@pytest.mark.parametrize(
    ("geometry", "x", "y"),
    [
        (POINT, 1.0, 2.0),
        (wkb(1, numbers(NAN, NAN)), None, None),
        (LINE, None, None),
        (wkb(7, several(POINT)), None, None),
        (None, None, None),
    ],
)
def test_coordinates(geometry: bytes | None, x: Value, y: Value) -> None:
    assert same(value_of("st_x(a)", geometry), x)
    assert same(value_of("st_y(a)", geometry), y)


def nested(depth: int) -> bytes:
    collection = POINT
    for _ in range(depth):
        collection = wkb(7, several(collection))
    return collection


@pytest.mark.parametrize(
    "geometry",
    [
        "",
        "0",
        "zz",
        "é",
        5,
        b"",
        b"\x01",
        POINT[:-1],
        POINT + b"\0",
        b"\x02" + POINT[1:],
        wkb(8, several(numbers(0, 0))),  # curves have no GeoJSON
        wkb(4001, numbers(1, 2)),
        wkb(2, b"\xff\xff\xff\xff"),
        wkb(7, b"\xff\xff\xff\xff"),
        wkb(4, several(LINE)),
        nested(5000),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_no_geometry(geometry: Value) -> None:
    for function in ("st_astext", "st_asgeojson", "st_x", "st_y"):
        assert failure_of(f"{function}(a)", geometry) == "not a geometry in WKB or EWKB of a known type"


@settings(deadline=None, max_examples=examples(300))
@given(st.binary(max_size=60), st.sampled_from([POLYGON, wkb(7, several(POINT, LINE)), b"\x01\x07\0\0\0"]))
def test_any_bytes(noise: bytes, start: bytes) -> None:
    for value in (noise, start[: len(noise)] + noise, start + noise):
        result = evaluate("st_astext(a) || st_asgeojson(a)", value)
        assert result.puts or result.errors[0].endswith("not a geometry in WKB or EWKB of a known type")
