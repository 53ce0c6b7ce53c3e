"""Each form that bucket definitions and streams of edition 2 can take compiles and gives the rows that it promises,
and no other."""

from __future__ import annotations

from textwrap import dedent

import pytest

from headwater_rules.testing import RulesTest
from tests.unit.rules.forms import Asked, Held, Rows, check, form

ALL_EDITIONS_1_AND_2 = [
    form("one bucket for everybody, and an event", """
        event_definitions:
          stamp:
            payloads:
              - SELECT id, rider AS who, 'stamp' AS kind FROM stamps WHERE rider IS NOT NULL
        bucket_definitions:
          common:
            data:
              - select id, name from stables where not closed
              - select prizes.* from prizes where prizes.shown = true
        """,
        {"stables": [{"id": 1, "closed": False}, {"id": 4, "closed": True}],
         "prizes": [{"id": 2, "shown": True}, {"id": 3, "shown": False}]},
        {"stables": [1], "prizes": [2]}),
    form("the user's own rows, some of them cut short", """
        bucket_definitions:
          rider:
            parameters: select id as rider from riders where login = request.user_id()
            data:
              - select *, 'sealed' as result, 0 as points from races where bucket.rider = rider and not over
              - select id, result, points * 2 as points from races where rider = bucket.rider and over
        """,
        {"riders": [{"id": 5, "login": "kim"}, {"id": 6, "login": "lee"}],
         "races": [{"id": 1, "rider": 5, "over": False, "result": "won", "points": 3},
                   {"id": 2, "rider": 5, "over": True, "result": "won", "points": 3}, {"id": 3, "rider": 6}]},
        {"races": [{"id": 1, "result": "sealed", "points": 0}, {"id": 2, "result": "won", "points": 6}]}),
    form("the oldest names of the request", """
        bucket_definitions:
          rider:
            parameters: SELECT token_parameters.user_id AS rider, token_parameters.track AS track
            data: [SELECT * FROM laps WHERE rider = bucket.rider AND track = bucket.track]
          chosen:
            accept_potentially_dangerous_queries: true
            parameters: SELECT user_parameters.horse AS horse
            data: [SELECT * FROM horses WHERE id = bucket.horse]
        """,
        {"laps": [{"id": 1, "rider": "kim", "track": "t"}, {"id": 2, "rider": "kim", "track": "u"},
                  {"id": 3, "rider": "lee", "track": "t"}], "horses": [{"id": 4}, {"id": 5}]},
        {"laps": [1], "horses": [4]}, user={"sub": "kim", "parameters": {"track": "t"}}, parameters={"horse": 4}),
    form("names in mixed case", """
        bucket_definitions:
          "gameDays":
            parameters: >
              SELECT "homeClub" AS club, "Tier" AS tier FROM "clubCards"
              WHERE "clubCards"."holderId" = request.user_id()
            data:
              - |
                SELECT id, "kickOff" AS "Start" FROM "gameDay" AS "Games"
                WHERE "clubId" = bucket.club AND "Tier" = bucket.tier
        """,
        {"clubCards": [{"id": 1, "homeClub": 5, "Tier": "gold", "holderId": "kim"},
                       {"id": 2, "homeClub": 6, "Tier": "tin", "holderId": None, "holderid": "kim"}],
         "gameDay": [{"id": 7, "clubId": 5, "Tier": "gold", "kickOff": "15:00"}, {"id": 8, "clubId": 5, "Tier": "tin"},
                     {"id": 9, "clubId": 6, "Tier": "tin"}]},
        {"Games": [{"id": 7, "Start": "15:00"}]}),
    form("several ways to the same kind of bucket", """
        bucket_definitions:
          pens:
            parameters:
              - SELECT id AS pen FROM pens WHERE request.user_id() IN herders
              - SELECT value AS pen FROM json_each(request.jwt() -> 'pens')
              - SELECT request.parameters() ->> 'guest_pen' AS pen WHERE request.jwt() ->> 'guest'
            data: [SELECT * FROM sheep WHERE pen = bucket.pen AND weight > 20]
        """,
        {"pens": [{"id": 1, "herders": ["lee", "kim"]}, {"id": 2, "herders": ["lee"]}],
         "sheep": [{"id": i + 10, "pen": i, "weight": 30} for i in (1, 2, 3, 4)] + [{"id": 20, "pen": 1, "weight": 9}]},
        {"sheep": [11, 13]}, user={"sub": "kim", "pens": [3], "guest": False}, parameters={"guest_pen": 4}),
    form("two parameters of one row", """
        bucket_definitions:
          flocks:
            parameters: SELECT breed AS kind, pen FROM contracts WHERE vet = request.user_id() AND signed IS NOT NULL
            data:
              - SELECT id, name FROM sheep WHERE bucket.kind = breed AND pen = bucket.pen
              - SELECT * FROM pens WHERE pen_no = bucket.pen AND bucket.kind IN breeds
        """,
        {"contracts": [{"id": 1, "breed": "a", "pen": 1, "vet": "kim", "signed": "x"},
                       {"id": 2, "breed": "b", "pen": 2, "vet": "kim", "signed": "x"},
                       {"id": 3, "breed": "a", "pen": 2, "vet": "kim"}],
         "sheep": [{"id": 4, "breed": "a", "pen": 1}, {"id": 5, "breed": "a", "pen": 2}],
         "pens": [{"id": 6, "pen_no": 1, "breeds": ["b"]}, {"id": 7, "pen_no": 2, "breeds": ["a", "b"]}]},
        {"sheep": [4], "pens": [7]}),
    form("a parameter of the row and one of the request", """
        bucket_definitions:
          wool:
            parameters: >-
              SELECT id AS pen, request.jwt() ->> 'season' AS season FROM pens
              WHERE farmer = request.user_id()
            data: [SELECT * FROM bales WHERE pen = bucket.pen AND season = bucket.season]
        """,
        {"pens": [{"id": 1, "farmer": "kim"}, {"id": 2, "farmer": "lee"}],
         "bales": [{"id": 3, "pen": 1, "season": "s1"}, {"id": 4, "pen": 1, "season": "s2"},
                   {"id": 5, "pen": 2, "season": "s1"}]},
        {"bales": [3]}, user={"sub": "kim", "season": "s1"}),
    form("a row that opens a bucket for all", """
        bucket_definitions:
          office:
            parameters: SELECT FROM staff WHERE login = request.user_id() AND (chief OR 'ledger' IN rights)
            data:
              - SELECT * FROM ledgers WHERE NOT sealed
        """,
        {"staff": [{"id": 1, "login": "kim", "chief": False, "rights": ["ledger"]}],
         "ledgers": [{"id": 1, "sealed": False}, {"id": 2, "sealed": True}]},
        {"ledgers": [1]}),
    form("rows that do not open it", """
        bucket_definitions:
          office:
            parameters: SELECT FROM offices WHERE NOT shut AND code IN request.jwt() -> 'offices'
            data: [SELECT * FROM ledgers]
        """,
        {"offices": [{"id": 1, "code": "a", "shut": True}, {"id": 2, "code": "b"}], "ledgers": [{"id": 1}]},
        {"ledgers": []}, user={"sub": "kim", "offices": ["a"]}),
    form("an array of the synced row", """
        bucket_definitions:
          dances:
            parameters: SELECT dance FROM pupils WHERE pupil = request.user_id()
            data:
              - SELECT * FROM dances WHERE id = bucket.dance
              - SELECT id, name FROM teachers WHERE bucket.dance IN can_teach
        """,
        {"pupils": [{"id": 1, "dance": "d1", "pupil": "kim"}, {"id": 2, "dance": "d2", "pupil": "lee"}],
         "dances": [{"id": "d1"}, {"id": "d2"}],
         "teachers": [{"id": 3, "can_teach": ["d2", "d1"], "name": "x"}, {"id": 4, "can_teach": ["d2"]}, {"id": 5}]},
        {"dances": ["d1"], "teachers": [{"id": 3, "name": "x"}]}),
    form("an array of the row that leads to others", """
        bucket_definitions:
          classes:
            parameters: SELECT id AS class FROM classes WHERE request.user_id() IN classes.pupils AND NOT cancelled
            data: [SELECT * FROM songs WHERE class = bucket.class]
        """,
        {"classes": [{"id": 1, "pupils": ["kim"], "cancelled": False}, {"id": 2, "pupils": ["lee"]},
                     {"id": 3, "pupils": ["kim"], "cancelled": True}],
         "songs": [{"id": i + 10, "class": i} for i in (1, 2, 3)]},
        {"songs": [11]}),
    form("claims that a row's columns are compared with and searched in", """
        bucket_definitions:
          terms:
            parameters: >
              SELECT school, level FROM terms
              WHERE NOT ended AND school IN request.jwt() ->> 'schools' AND level = request.jwt() ->> 'level'
            data: [SELECT * FROM classes WHERE school = bucket.school AND level = bucket.level]
        """,
        {"terms": [{"id": 1, "school": "s", "level": 2, "ended": False}, {"id": 2, "school": "r", "level": 2,
          "ended": True}, {"id": 3, "school": "s", "level": 3}, {"id": 4, "school": "t", "level": 2}],
         "classes": [{"id": 5, "school": "s", "level": 2}, {"id": 6, "school": "s", "level": 3},
                     {"id": 7, "school": "r", "level": 2}, {"id": 8, "school": "t", "level": 2}]},
        {"classes": [5]}, user={"sub": "kim", "schools": ["r", "s"], "level": 2}),
    form("a list of the client in brackets, and a switch", """
        bucket_definitions:
          classes:
            parameters: >
              SELECT id AS class FROM classes
              WHERE teacher = request.user_id() AND room IN (request.parameters() ->> 'rooms')
                AND request.parameters() ->> 'evenings'
            data: [SELECT * FROM songs WHERE class = bucket.class]
        """,
        {"classes": [{"id": 1, "room": "r", "teacher": "kim"}, {"id": 2, "room": "q", "teacher": "kim"},
                     {"id": 3, "room": "r", "teacher": "lee"}],
         "songs": [{"id": i + 10, "class": i} for i in (1, 2, 3)]},
        {"songs": [11]}, parameters={"rooms": ["r"], "evenings": True}),
    form("what the client wants of two definitions", """
        bucket_definitions:
          full:
            parameters: SELECT request.user_id() AS author WHERE request.parameters() ->> 'mode' = 'full'
            data: [SELECT * FROM articles WHERE author = bucket.author]
          light:
            parameters: SELECT WHERE request.parameter('mode') = 'light' AND request.jwt() ->> 'press'
            data: [SELECT id FROM articles AS headlines WHERE top]
        """,
        {"articles": [{"id": 1, "top": True, "author": "lee"}, {"id": 2, "top": False, "author": "kim"}]},
        {"articles": [], "headlines": [1]}, user={"sub": "kim", "press": 1}, parameters={"mode": "light"}),
    form("days that the client lists", """
        bucket_definitions:
          days:
            parameters: |
              SELECT d.value AS day, request.user_id() AS nurse
              FROM json_each(request.parameters() -> 'days') AS d WHERE length(d.value) = 10
            data: ["SELECT id, ward FROM shifts WHERE nurse = bucket.nurse AND date(starts) = bucket.day"]
        """,
        {"shifts": [{"id": 1, "starts": "2031-05-01T08:00:00Z", "nurse": "kim"},
                    {"id": 2, "starts": "2031-05-02T08:00:00Z", "nurse": "kim"},
                    {"id": 3, "starts": "2031-05-01T20:00:00Z", "nurse": "lee"}]},
        {"shifts": [1]}, parameters={"days": ["2031-05-01", "2031-05"]}),
    form("claims that are listed, as far as a claim goes with them", """
        bucket_definitions:
          depots:
            parameters: |
              SELECT d.value AS depot FROM json_each(request.jwt() -> 'depots') AS d
              WHERE d.value != 'closed' AND request.jwt() ->> 'driver'
            data: [SELECT * FROM vans WHERE depot = bucket.depot]
        """,
        {"vans": [{"id": 1, "depot": "n"}, {"id": 2, "depot": "closed"}, {"id": 3, "depot": "s"}]},
        {"vans": [1]}, user={"sub": "kim", "depots": ["n", "closed"], "driver": True}),
    form("columns that are computed, and one of them under two names", """
        bucket_definitions:
          drafts:
            priority: 0
            parameters: SELECT (request.parameters() ->> 'poem') AS poem, request.user_id() AS author
            data:
              - >
                SELECT code AS id, code AS line, hex(ink) AS ink_hex, length(ink) AS size FROM lines AS verses
                WHERE author = bucket.author AND poem = bucket.poem
        """,
        {"lines": [{"code": "a", "poem": "p", "ink": b"\x01\x02", "author": "kim"}, {"code": "b", "poem": "p",
         "author": "lee"}, {"code": "c", "poem": "q", "author": "kim"}]},
        {"verses": [{"id": "a", "line": "a", "ink_hex": "0102", "size": 2}]}, parameters={"poem": "p"}),
    form("either of two columns", """
        bucket_definitions:
          letters:
            parameters: SELECT request.user_id() AS person
            data: [SELECT * FROM letters WHERE (sender = bucket.person OR reader = bucket.person) AND NOT burnt]
        """,
        {"letters": [{"id": 1, "sender": "kim"}, {"id": 2, "reader": "kim"}, {"id": 3, "sender": "lee"},
                     {"id": 4, "sender": "kim", "burnt": True}]},
        {"letters": [1, 2]}),
    form("a part of tables' names as a parameter", """
        bucket_definitions:
          seasons:
            parameters: >
              SELECT guide_no AS guide, _table_suffix AS season FROM "guides_%"
              WHERE login = request.user_id() AND _table_suffix != 'old'
            data:
              - |
                SELECT id, _table_suffix AS season FROM "walks_%" w
                WHERE guide = bucket.guide AND _table_suffix = bucket.season
        """,
        {"guides_may": [{"id": 1, "guide_no": 5, "login": "kim"}], "guides_old": [{"id": 1, "guide_no": 5,
          "login": "kim"}], "guides_june": [{"id": 1, "guide_no": 5, "login": "lee"}],
         "walks_may": [{"id": 1, "guide": 5}, {"id": 2, "guide": 6}], "walks_old": [{"id": 3, "guide": 5}],
         "walks_june": [{"id": 4, "guide": 5}]},
        {"w": [{"id": 1, "season": "may"}]}),
    form("columns that begin with an underscore, and an id that is made", """
        bucket_definitions:
          all:
            parameters: SELECT request.jwt() ->> 'zoo' AS zoo
            data:
              - SELECT tag AS id, * FROM animals WHERE zoo = bucket.zoo AND species != 'bat'
        """,
        {"animals": [{"id": 1, "tag": "t1", "zoo": "z", "species": "ant", "_note": "x"}, {"id": 2, "tag": "t2",
         "zoo": "z"}, {"id": 3, "tag": "t3", "zoo": "z", "species": "bat"}, {"id": 4, "tag": "t4", "species": "ant"}]},
        {"animals": [{"id": "t1"}]}, user={"sub": "kim", "zoo": "z"}),
]  # fmt: skip

EDITION_2 = [
    form("streams beside bucket definitions", """
        bucket_definitions:
          kennels:
            parameters: SELECT kennel FROM walkers WHERE walker = request.user_id()
            data: [SELECT * FROM dogs WHERE kennel = bucket.kennel]
        streams:
          open_kennels: {query: SELECT * FROM kennels WHERE closed = false, auto_subscribe: true}
          walks: {query: SELECT * FROM walks WHERE page = subscription.parameter('page')}
        """,
        {"walkers": [{"id": 1, "kennel": 5, "walker": "kim"}], "dogs": [{"id": 2, "kennel": 5}, {"id": 3, "kennel": 6}],
         "kennels": [{"id": 5, "closed": False}, {"id": 6, "closed": True}, {"id": 7}],
         "walks": [{"id": 8, "page": 1}, {"id": 9, "page": 2}]},
        {"dogs": [2], "kennels": [5], "walks": [8]}, subscriptions={"walks": {"page": 1}}),
    form("subqueries on the row and on the request", """
        streams:
          dogs:
            auto_subscribe: true
            query: SELECT * FROM dogs WHERE kennel IN (SELECT kennel FROM walkers WHERE walker = auth.user_id())
          bills:
            auto_subscribe: true
            query: |
              SELECT * FROM bills WHERE state != 'paid' AND auth.user_id() IN (SELECT id FROM owners WHERE active)
        """,
        {"walkers": [{"id": 1, "kennel": 5, "walker": "kim"}, {"id": 4, "kennel": 6, "walker": "lee"}],
         "dogs": [{"id": 2, "kennel": 5}, {"id": 3, "kennel": 6}], "owners": [{"id": "kim", "active": True}],
         "bills": [{"id": 7, "state": "due"}, {"id": 8, "state": "paid"}, {"id": 9}]},
        {"dogs": [2], "bills": [7]}),
    form("an array of the row and a subquery, a suffix", """
        streams:
          toys:
            auto_subscribe: true
            query: SELECT * FROM toys WHERE kennels && (SELECT kennel FROM walkers WHERE walker = auth.user_id())
          logs:
            auto_subscribe: true
            query: SELECT * FROM "log_%" AS logs WHERE _table_suffix = auth.parameter('year')
        """,
        {"walkers": [{"id": 1, "kennel": 5, "walker": "kim"}], "toys": [{"id": 2, "kennels": [5, 6]},
         {"id": 3, "kennels": [6]}], "log_1": [{"id": 4}], "log_2": [{"id": 5}]},
        {"toys": [2], "logs": [5]}, user={"sub": "kim", "year": "2"}),
]  # fmt: skip

EDITION_1 = [
    form("a path with dots into a claim", """
        bucket_definitions:
          barns:
            parameters: SELECT id AS barn FROM barns WHERE farm IN request.jwt() ->> 'app.farms'
            data: [SELECT * FROM hay WHERE barn = bucket.barn AND info ->> 'by.whom' = 'kim']
        """,
        {"barns": [{"id": 1, "farm": "f"}, {"id": 2, "farm": "g"}],
         "hay": [{"id": 3, "barn": 1, "info": {"by": {"whom": "kim"}}},
                 {"id": 4, "barn": 1, "info": {"by.whom": "kim"}},
                 {"id": 5, "barn": 2, "info": {"by": {"whom": "kim"}}}]},
        {"hay": [3]}, user={"sub": "kim", "app": {"farms": ["f"]}, "app.farms": ["g"]}),
]  # fmt: skip


@pytest.mark.parametrize("edition", [1, 2])
@pytest.mark.parametrize(("config", "rows", "held", "asked"), ALL_EDITIONS_1_AND_2)
def test_forms_of_bucket_definitions(config: str, rows: Rows, held: Held, asked: Asked, edition: int) -> None:
    check(edition, config, rows, held, asked)


@pytest.mark.parametrize(("config", "rows", "held", "asked"), EDITION_2)
def test_forms_of_edition_2(config: str, rows: Rows, held: Held, asked: Asked) -> None:
    check(2, config, rows, held, asked)


@pytest.mark.parametrize(("config", "rows", "held", "asked"), EDITION_1)
def test_forms_of_edition_1(config: str, rows: Rows, held: Held, asked: Asked) -> None:
    check(1, config, rows, held, asked)


def test_priority_of_a_bucket() -> None:
    rules = RulesTest.of_text(
        dedent("""
        bucket_definitions:
          shelves:
            priority: 1
            parameters: select request.user_id() as keeper
            data: [select * from shelves where keeper = bucket.keeper]
          jars:
            parameters:
              - select id as shelf, 2 as _priority from shelves where keeper = request.user_id()
              - select shelf from guests where guest = request.user_id()
            data: [select * from jars where shelf = bucket.shelf]
        """)
    )
    rules.insert("shelves", {"id": 1, "keeper": "kim"}, {"id": 2, "keeper": "lee"}, {"id": 3, "keeper": "lee"})
    rules.insert("guests", id=4, shelf=2, guest="kim")
    rules.insert("jars", *({"id": shelf + 10, "shelf": shelf} for shelf in (1, 2, 3)))
    kim = rules.client("kim")
    kim.assert_synced("shelves", [1])
    kim.assert_synced("jars", [11, 12])
    given = {(bucket.streams, bucket.parameters): bucket.priority for bucket in kim.buckets()}
    assert given == {(("shelves",), ("kim",)): 1, (("jars",), (1,)): 2, (("jars",), (2,)): 3}
