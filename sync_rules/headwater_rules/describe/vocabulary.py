"""The words of the rule language with a line on each, for editors that complete and explain what is typed. The whole
reference is docs/sync-rules.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    """A function or a value of the request: its name, how it is called, and what it gives."""

    name: str
    signature: str
    doc: str


def _words(table: str) -> tuple[Word, ...]:
    """One word a line: how it is called, and what it gives."""
    pairs = (line.split(" | ", 1) for line in table.strip().splitlines())
    return tuple(Word(signature.partition("(")[0], signature, doc) for signature, doc in pairs)


FUNCTIONS = _words("""
abs(x) | the number without its sign; null for null
base64(x) | Base64 of a blob, or of the UTF-8 of the text form; null gives the empty text
ceil(x) | the next higher whole number; integers stay integers
ceiling(x) | the same as ceil(x)
coalesce(a, b, …) | the first that is not null
concat(x, …) | the text forms joined; null is skipped
concat_ws(separator, x, …) | the text forms joined with a separator; null is skipped
date(t [, modifier, …]) | the date of a point in time, YYYY-MM-DD, UTC
datetime(t [, modifier, …]) | a point in time as YYYY-MM-DD HH:MM:SS, UTC
floor(x) | the next lower whole number; integers stay integers
hex(x) | a blob, or the UTF-8 of the text form, in hexadecimal; null gives the empty text
ifnull(a, b) | a, or b if a is null
iif(condition, a, b) | a if the condition is true, else b
instr(x, part) | the position of the first part, from 1; 0 if absent
json(x) | the JSON text without white space; fails for what is not JSON
json_array(x, …) | a JSON array of the values
json_array_length(x [, path]) | the number of elements of a JSON array
json_extract(x, path) | the element at a path that begins with $, as ->> gives it
json_keys(x) | the keys of a JSON object as a JSON array
json_object(key, x, …) | a JSON object of these keys and values
json_type(x [, path]) | object, array, text, integer, real, true, false or null
json_valid(x) | 1 if the text is JSON, else 0
julianday(t [, modifier, …]) | a point in time as Julian day
length(x) | the length of the text form in UTF-16 units, or of a blob in bytes
lower(x) | the text in lower case, of all Unicode letters
ltrim(x [, characters]) | without these characters (spaces) at the left end
max(a, b, …) | the greatest; null if one is null
min(a, b, …) | the least; null if one is null
nullif(a, b) | null if both are equal, else a
replace(x, a, b) | every a in x replaced by b
round(x [, digits]) | a rounded real, halves away from 0
rtrim(x [, characters]) | without these characters (spaces) at the right end
sign(x) | -1, 0 or 1; null for what is no number
st_asgeojson(geometry) | the geometry as GeoJSON
st_astext(geometry) | the geometry as text, such as POINT(1 2)
st_x(geometry) | the x coordinate of a point
st_y(geometry) | the y coordinate of a point
strftime(format, t [, modifier, …]) | a point in time in a format of strftime, UTC
substr(x, start [, n]) | the same as substring(x, start, n)
substring(x, start [, n]) | part of a text or blob, from 1; a negative start counts from the end
time(t [, modifier, …]) | the time of day of a point in time, HH:MM:SS, UTC
trim(x [, characters]) | without these characters (spaces) at both ends
trunc(x) | the number without its fraction
typeof(x) | null, integer, real, text or blob
unixepoch(t [, modifier, …]) | a point in time as seconds since 1970
upper(x) | the text in upper case, of all Unicode letters
uuid_blob(x) | the 16 bytes of a UUID
""")
"""All functions that expressions may call."""

ROW_FUNCTIONS = _words("""
row_id() | the row's identity as text; the id on devices where none is selected
table_name() | the name of the row's table
table_suffix() | what % stands for in the name of the row's table
schema() | the schema of the row's table
source() | the shard of the row, or its source's tag
""")
"""What a query may ask of a row itself; the name of its table may stand before: `t.row_id()`."""

PARAMETERS = _words("""
auth.user_id() | the user: the token's claim sub
auth.parameter('name') | a claim of the token
auth.parameters() | all claims of the token as JSON
connection.parameter('name') | a client parameter of the connection, which the device chooses
connection.parameters() | all client parameters of the connection as JSON
subscription.parameter('name') | a parameter of the subscription, which the device chooses
subscription.parameters() | all parameters of the subscription as JSON
request.user_id() | in parameter queries of bucket definitions: the token's claim sub
request.jwt() | in parameter queries of bucket definitions: all claims of the token as JSON
request.parameters() | in parameter queries of bucket definitions: all client parameters as JSON
now() | the present time, to compare a column with: created_at > now() - interval '7 days'
""")
"""The values that differ by request. Of these, the device alone can't choose those that begin with `auth.`."""

KEYWORDS = (
    "SELECT", "FROM", "AS", "JOIN", "INNER JOIN", "LEFT JOIN", "ON", "WHERE", "AND", "OR", "NOT", "IN",
    "EXISTS", "BETWEEN", "LIKE", "ESCAPE", "IS NULL", "IS NOT NULL", "IS DISTINCT FROM", "IS TRUE", "IS FALSE", "CASE",
    "WHEN", "THEN", "ELSE", "END", "CAST", "ARRAY", "INTERVAL", "NULL", "TRUE", "FALSE",
)  # fmt: skip
"""Keywords of SQL that queries may have."""
