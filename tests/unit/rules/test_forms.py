"""Each form of a stream's query compiles and gives the rows that it promises, and no other: cases in small worlds of
their own."""

from __future__ import annotations

import pytest

from tests.unit.rules.forms import Asked, Held, Rows, check, form

STREAMS = [
    form("a claim", "SELECT * FROM shelves WHERE branch = auth.parameter('branch')",
        {"shelves": [{"id": 1, "branch": "north"}, {"id": 2, "branch": "south"}, {"id": 3}]},
        {"shelves": [1]}, user={"sub": "kim", "branch": "north"}),
    form("a number among the claims", "SELECT * FROM loans WHERE reader_no = auth.parameter('reader_no')",
        {"loans": [{"id": 1, "reader_no": 7}, {"id": 2, "reader_no": "7"}, {"id": 3, "reader_no": 8}]},
        {"loans": [1]}, user={"sub": "kim", "reader_no": 7}),
    form("a path into the claims", "SELECT * FROM loans WHERE desk = auth.parameters() ->> '$.library.desks.0'",
        {"loans": [{"id": 1, "desk": "d1"}, {"id": 2, "desk": "d2"}]},
        {"loans": [1]}, user={"sub": "kim", "library": {"desks": ["d1", "d2"]}}),
    form("a claim that opens the stream",
        "SELECT * FROM fines WHERE amount > 5 AND auth.parameter('role') = 'librarian'",
        {"fines": [{"id": 1, "amount": 9}, {"id": 2, "amount": 5}]},
        {"fines": [1]}, user={"sub": "kim", "role": "librarian"}),
    form("a claim that does not open the stream", "SELECT * FROM fines WHERE auth.parameter('role') = 'librarian'",
        {"fines": [{"id": 1}]}, {"fines": []}, user={"sub": "kim", "role": "reader"}),
    form("own rows, some of the group, and all for a role", """
        SELECT * FROM recipes
        WHERE cook = auth.user_id()
           OR (stage IN ('served', 'sold') AND kitchen = auth.parameter('kitchen'))
           OR (auth.parameter('chef') AND kitchen IN auth.parameter('kitchens'))
        """,
        {"recipes": [{"id": 1, "kitchen": "k9", "cook": "kim"}, {"id": 2, "kitchen": "k1", "stage": "sold"},
                     {"id": 3, "kitchen": "k2", "stage": "sold"}, {"id": 4, "kitchen": "k1", "stage": "raw"},
                     {"id": 5, "kitchen": "k3", "cook": "lee"}]},
        {"recipes": [1, 2, 5]}, user={"sub": "kim", "kitchen": "k1", "kitchens": ["k3"], "chef": True}),
    form("an array claim without brackets", "SELECT id, title FROM wards WHERE id IN auth.parameter('wards')",
        {"wards": [{"id": 4}, {"id": 5}, {"id": 6}]}, {"wards": [4, 6]}, user={"sub": "kim", "wards": [4, 6]}),
    form("an array claim in brackets", """
        streams:
          wards:
            auto_subscribe: true
            query: SELECT id FROM wards WHERE floor IN (auth.parameter('floors'))
          beds:
            auto_subscribe: true
            query: SELECT id FROM beds WHERE ward IN ( auth.parameters() ->> 'wards' )
        """,
        {"wards": [{"id": 4, "floor": 1}, {"id": 5, "floor": 2}], "beds": [{"id": 6, "ward": 4}, {"id": 7, "ward": 5}]},
        {"wards": [5], "beds": [6]}, user={"sub": "kim", "floors": [2, 3], "wards": [4]}),
    form("an array of the row in brackets",
        "SELECT * FROM visits WHERE auth.user_id() IN (notes -> 'nurses') AND 'x' NOT IN (notes -> 'flags')",
        {"visits": [{"id": 1, "notes": {"nurses": ["kim"], "flags": []}}, {"id": 2, "notes": {"nurses": ["lee"]}},
                    {"id": 3, "notes": {"nurses": ["kim"], "flags": ["x"]}}]},
        {"visits": [1]}),
    form("an array claim joined as a table", """
        SELECT beds.* FROM beds
        INNER JOIN json_each(auth.parameter('wards')) AS w ON w.value = beds.ward
        WHERE w.key < 2
        """,
        {"beds": [{"id": i, "ward": i} for i in (1, 2, 3, 4)]},
        {"beds": [1, 3]}, user={"sub": "kim", "wards": [3, 1, 2]}),
    form("a subquery of an array claim",
        "SELECT * FROM beds WHERE ward IN (SELECT value FROM json_each(auth.parameters() -> 'wards'))",
        {"beds": [{"id": 1, "ward": "a"}, {"id": 2, "ward": "b"}]},
        {"beds": [2]}, user={"sub": "kim", "wards": ["b"]}),
    form("an array in a row that leads to others", """
        SELECT rooms.* FROM badges b, json_each(b.rooms) AS k, rooms
        WHERE rooms.id = k.value AND b.holder = auth.user_id() AND b.valid AND k.key < 2
        """,
        {"rooms": [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}],
         "badges": [{"id": 9, "holder": "kim", "rooms": [1, 2, 4], "valid": True},
                    {"id": 8, "holder": "kim", "rooms": [3], "valid": False}]},
        {"rooms": [1, 2]}),
    form("arrays that overlap", "SELECT * FROM drills WHERE sports && auth.parameter('sports')",
        {"drills": [{"id": 1, "sports": ["chess", "judo"]}, {"id": 2, "sports": ["golf"]}, {"id": 3, "sports": []}]},
        {"drills": [1]}, user={"sub": "kim", "sports": ["judo", "swim"]}),
    form("an array that overlaps a subquery",
        "SELECT * FROM drills WHERE squads && (SELECT squad FROM players WHERE player = auth.user_id())",
        {"drills": [{"id": 1, "squads": [10, 11]}, {"id": 2, "squads": [12]}, {"id": 3}],
         "players": [{"id": 4, "squad": 11, "player": "kim"}, {"id": 5, "squad": 12, "player": "lee"}]},
        {"drills": [1]}),
    form("any of an array", "SELECT * FROM drills WHERE auth.user_id() = ANY (coaches) AND level = ANY (ARRAY[1, 2])",
        {"drills": [{"id": 1, "coaches": ["kim"], "level": 2}, {"id": 2, "coaches": ["kim"], "level": 3},
                    {"id": 3, "coaches": ["lee"], "level": 1}]},
        {"drills": [1]}),
    form("lists, ranges and patterns", """
        SELECT * FROM parts
        WHERE bin NOT IN '["scrap", "lost"]' AND maker NOT IN ARRAY['acme'] AND kind IN ROW('bolt', 'nut')
          AND size BETWEEN 2 AND 8 AND label LIKE 'M%'
        """,
        {"parts": [{"id": 1, "bin": "a", "kind": "nut", "size": 8, "label": "M8"},
                   {"id": 2, "bin": "scrap", "kind": "nut", "size": 8, "label": "M8"},
                   {"id": 3, "bin": "a", "maker": "acme", "kind": "nut", "size": 8, "label": "M8"},
                   {"id": 4, "bin": "a", "kind": "cog", "size": 8, "label": "M8"},
                   {"id": 5, "bin": "a", "kind": "bolt", "size": 9, "label": "M9"},
                   {"id": 6, "bin": "a", "kind": "bolt", "size": 2, "label": "UNC"}]},
        {"parts": [1]}),
    form("truth of columns, null and CASE", """
        SELECT * FROM jobs
        WHERE paid AND NOT recalled AND closed IS NULL AND CASE WHEN rush THEN hours < 2 ELSE hours < 9 END
        """,
        {"jobs": [{"id": 1, "paid": True, "rush": True, "hours": 1}, {"id": 2, "paid": True, "rush": True, "hours": 3},
                  {"id": 3, "paid": True, "hours": 8}, {"id": 4, "paid": False, "hours": 1},
                  {"id": 5, "paid": True, "recalled": True, "hours": 1}, {"id": 6, "paid": True, "closed": "x"}]},
        {"jobs": [1, 3]}),
    form("unequal where one is null", "SELECT * FROM jobs WHERE state != 'void' AND hidden IS NOT TRUE",
        {"jobs": [{"id": 1, "state": "open"}, {"id": 2}, {"id": 3, "state": "void"}, {"id": 4, "hidden": True}]},
        {"jobs": [1, 2]}),
    form("columns that are computed", """
        SELECT id, UPPER(title) AS title, CAST(price AS TEXT) AS price, spec ->> '$.size.w' AS width,
          base64(photo) AS photo, unixepoch(due) AS due, iif(paid, 'yes', 'no') AS paid, 'job' AS kind
        FROM jobs
        WHERE mechanic = auth.user_id()
        """,
        {"jobs": [{"id": 1, "title": "gears", "price": 12, "spec": {"size": {"w": 3}}, "photo": b"\x01",
                   "due": "1970-01-02T00:00:00Z", "paid": True, "mechanic": "kim"}, {"id": 2, "mechanic": "lee"}]},
        {"jobs": [{"id": 1, "title": "GEARS", "price": "12", "width": 3, "photo": "AQ==", "due": 86400, "paid": "yes",
                   "kind": "job"}]}),
    form("a key of another name, and a comment", """
        SELECT
          -- what devices call it
          frame_no AS id, colour
        FROM bikes
        WHERE keeper = substring(auth.user_id(), 1, 3) /* the rest is the realm */
        """,
        {"bikes": [{"frame_no": "f1", "keeper": "kim"}, {"frame_no": "f2", "keeper": "kim@shop"}]},
        {"bikes": ["f1"]}, user="kim@shop"),
    form("names in mixed case, and with spaces", """
        streams:
          "Repair Jobs":
            auto_subscribe: true
            query: SELECT r."jobNo" AS id, r."Odd Name" FROM "RepairJobs" AS r WHERE r."mechanicId" = auth.user_id()
        """,
        {"RepairJobs": [{"jobNo": 1, "mechanicId": "kim", "Odd Name": "x"},
                        {"jobNo": 2, "mechanicId": None, "mechanicid": "kim"}]},
        {"r": [{"id": 1, "Odd Name": "x"}]}),
    form("open rows, rows that name the user, and rows that others lead to", """
        SELECT * FROM scores WHERE public OR auth.user_id() IN arrangers
          OR id IN (SELECT p.score FROM parts p WHERE p.player = auth.user_id() AND NOT p.lost)
        """,
        {"scores": [{"id": 1, "arrangers": ["kim"]}, {"id": 2}, {"id": 3}, {"id": 4, "public": True}, {"id": 5}],
         "parts": [{"id": 5, "score": 2, "player": "kim", "lost": False}, {"id": 6, "score": 3, "player": "lee"},
                   {"id": 7, "score": 5, "player": "kim", "lost": True}]},
        {"scores": [1, 2, 4]}),
    form("subqueries in subqueries", """
        SELECT * FROM trees WHERE row_no IN (
          SELECT id FROM tree_rows WHERE planted > 2000 AND field IN (
            SELECT field FROM keepers WHERE auth.user_id() IN helpers OR chief = auth.user_id()))
        """,
        {"trees": [{"id": i + 10, "row_no": i} for i in (5, 6, 7, 8)],
         "tree_rows": [{"id": 5, "field": "e", "planted": 2001}, {"id": 6, "field": "w", "planted": 2001},
                       {"id": 7, "field": "e", "planted": 1999}, {"id": 8, "field": "n", "planted": 2001}],
         "keepers": [{"id": 1, "field": "e", "helpers": ["kim"]}, {"id": 2, "field": "w", "helpers": ["lee"]},
                     {"id": 3, "field": "n", "chief": "kim"}]},
        {"trees": [15, 18]}),
    form("a chain of joins with alternatives at its end", """
        SELECT tree.* FROM fields f JOIN tree_rows tr ON tr.field_id = f.id, tree
        WHERE tree.row_id = tr.id AND f.region IN auth.parameter('regions')
          AND (f.open OR f.keeper = auth.user_id())
        """,
        {"fields": [{"id": 10, "region": "r", "open": True}, {"id": 11, "region": "r", "keeper": "kim"},
                    {"id": 12, "region": "r", "keeper": "lee"}, {"id": 13, "region": "q", "open": True}],
         "tree_rows": [{"id": i + 10, "field_id": i} for i in (10, 11, 12, 13)],
         "tree": [{"id": i + 20, "row_id": i + 10} for i in (10, 11, 12, 13)]},
        {"tree": [30, 31]}, user={"sub": "kim", "regions": ["r"]}),
    form("a table joined to itself", """
        SELECT singers.* FROM singers, voices mine, voices theirs
        WHERE mine.singer = auth.user_id() AND theirs.choir = mine.choir AND singers.id = theirs.singer
        """,
        {"singers": [{"id": "kim"}, {"id": "lee"}, {"id": "max"}],
         "voices": [{"id": 1, "singer": "kim", "choir": 1}, {"id": 2, "singer": "lee", "choir": 1},
                    {"id": 3, "singer": "max", "choir": 2}]},
        {"singers": ["kim", "lee"]}),
    form("values of one row stay together", """
        SELECT * FROM seats
        WHERE (hall, block) IN (SELECT hall, block FROM passes WHERE who = auth.user_id())
        """,
        {"seats": [{"id": 1, "hall": "a", "block": 1}, {"id": 2, "hall": "a", "block": 2},
                   {"id": 3, "hall": "b", "block": 2}],
         "passes": [{"id": 4, "hall": "a", "block": 1, "who": "kim"},
                    {"id": 5, "hall": "b", "block": 2, "who": "kim"}]},
        {"seats": [1, 3]}),
    form("a derived table", """
        SELECT seats.id FROM seats
        JOIN (SELECT hall AS h, until FROM passes WHERE who = auth.user_id() AND NOT void) AS p
          ON p.h = seats.hall
        WHERE p.until = '2030'
        """,
        {"seats": [{"id": 1, "hall": "a"}, {"id": 2, "hall": "b"}, {"id": 3, "hall": "c"}],
         "passes": [{"id": 4, "hall": "a", "who": "kim", "until": "2030"}, {"id": 5, "hall": "b", "who": "kim"},
                    {"id": 6, "hall": "c", "who": "kim", "until": "2030", "void": True}]},
        {"seats": [1]}),
    form("a row that opens the stream", """
        streams:
          takings:
            auto_subscribe: true
            query: SELECT * FROM takings WHERE night > 3 AND auth.user_id() IN (SELECT id FROM staff WHERE cashier)
          props:
            auto_subscribe: true
            query: SELECT * FROM props WHERE EXISTS (SELECT 1 FROM staff s WHERE s.id = auth.user_id() AND s.stage)
        """,
        {"takings": [{"id": 1, "night": 4}, {"id": 2, "night": 3}], "props": [{"id": 3}],
         "staff": [{"id": "kim", "cashier": True, "stage": False}, {"id": "lee", "stage": True}]},
        {"takings": [1], "props": []}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "rows", "held", "asked"), STREAMS)
def test_forms_of_a_stream(config: str, rows: Rows, held: Held, asked: Asked) -> None:
    check(3, config, rows, held, asked)
