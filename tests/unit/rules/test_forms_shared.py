"""Each form of a stream's shared queries, subscriptions, versions and tables by pattern gives the rows that it
promises, and no other."""

from __future__ import annotations

import pytest

from tests.unit.rules.forms import Asked, Held, Rows, check, form

STREAMS = [
    form("one query that all streams name", """
        with:
          my_plots: SELECT plot FROM tenants WHERE who = auth.user_id()
        streams:
          crops:
            auto_subscribe: true
            query: SELECT * FROM crops WHERE plot IN my_plots AND ripe
          tools:
            auto_subscribe: true
            query: SELECT tools.* FROM tools INNER JOIN my_plots AS mine ON mine.plot = tools.plot
        """,
        {"tenants": [{"id": 1, "plot": 5, "who": "kim"}, {"id": 2, "plot": 6, "who": "lee"}],
         "crops": [{"id": 3, "plot": 5, "ripe": True}, {"id": 4, "plot": 5}, {"id": 5, "plot": 6, "ripe": True}],
         "tools": [{"id": 6, "plot": 5}, {"id": 7, "plot": 6}]},
        {"crops": [3], "tools": [6]}),
    form("a stream's own query instead of the one for all", """
        with:
          plots: SELECT plot FROM tenants WHERE who = auth.user_id()
        streams:
          crops:
            auto_subscribe: true
            query: SELECT * FROM crops WHERE plot IN plots
          seeds:
            auto_subscribe: true
            with:
              plots: SELECT plot FROM guests WHERE who = auth.user_id()
            query: SELECT * FROM seeds WHERE plot IN plots
        """,
        {"tenants": [{"id": 1, "plot": 5, "who": "kim"}], "guests": [{"id": 2, "plot": 6, "who": "kim"}],
         "crops": [{"id": 3, "plot": 5}, {"id": 4, "plot": 6}], "seeds": [{"id": 5, "plot": 5}, {"id": 6, "plot": 6}]},
        {"crops": [3], "seeds": [6]}),
    form("several queries and one way to them", """
        streams:
          boat:
            with:
              my_boats: SELECT boat, port FROM crews WHERE sailor = auth.user_id() AND aboard
              boat_ids: SELECT boat FROM crews WHERE sailor = auth.user_id() AND aboard
            queries:
              - SELECT * FROM sails WHERE boat IN boat_ids AND boat = subscription.parameter('boat') AND NOT torn
              - >-
                SELECT p.* FROM ports AS "p", my_boats mb
                WHERE mb.port = p.id AND mb.boat = subscription.parameter('boat')
        """,
        {"crews": [{"id": 1, "boat": 5, "port": 8, "sailor": "kim", "aboard": True}, {"id": 2, "boat": 6, "port": 9,
          "sailor": "kim", "aboard": True}, {"id": 3, "boat": 7, "port": 10, "sailor": "kim", "aboard": False}],
         "ports": [{"id": 8}, {"id": 9}, {"id": 10}],
         "sails": [{"id": 1, "boat": 5, "torn": False}, {"id": 2, "boat": 5, "torn": True}, {"id": 3, "boat": 6},
                   {"id": 4, "boat": 7}]},
        {"p": [8], "sails": [1]}, subscriptions={"boat": [{"boat": 5}, {"boat": 7}]}),
    form("a subscription's value and a join in the shared query", """
        streams:
          berths:
            with:
              chosen: |
                SELECT p.id AS pier, m.dock AS dock FROM piers p, masters m
                WHERE m.port = p.port AND m.who = auth.user_id()
                  AND p.id = subscription.parameter('pier') AND (p.public OR p.length < 50)
            query: SELECT berths.* FROM berths JOIN chosen c ON c.pier = berths.pier AND c.dock = berths.dock
        """,
        {"piers": [{"id": 1, "port": "p", "public": True}, {"id": 2, "port": "p", "length": 90},
                   {"id": 3, "port": "q", "public": True}, {"id": 4, "port": "p", "length": 9}],
         "masters": [{"id": 4, "port": "p", "who": "kim", "dock": 1}, {"id": 5, "port": "q", "who": "lee", "dock": 1}],
         "berths": [{"id": 10 * pier + dock, "pier": pier, "dock": dock} for pier in (1, 2, 3, 4) for dock in (1, 2)]},
        {"berths": [11, 41]}, subscriptions={"berths": [{"pier": i} for i in (1, 2, 3, 4)]}),
    form("a subscription's value that the row has in an array", """
        streams:
          tours:
            query: |
              SELECT * FROM tours
              WHERE subscription.parameter('stop') IN stops AND guide = auth.user_id()
        """,
        {"tours": [{"id": 1, "stops": ["a", "b"], "guide": "kim"}, {"id": 2, "stops": ["c"], "guide": "kim"},
                   {"id": 3, "stops": ["a"], "guide": "lee"}]},
        {"tours": [1]}, subscriptions={"tours": {"stop": "a"}}),
    form("values that a subscription lists", """
        streams:
          tours:
            query: SELECT * FROM tours WHERE id IN (subscription.parameter('ids')) AND guide = auth.user_id()
        """,
        {"tours": [{"id": 1, "guide": "kim"}, {"id": 2, "guide": "kim"}, {"id": 3, "guide": "lee"}]},
        {"tours": [2]}, subscriptions={"tours": {"ids": [2, 3]}}),
    form("part of a moment, coarse or fine", """
        streams:
          tickets:
            queries:
              - |
                SELECT * FROM tickets
                WHERE booth IN auth.parameter('booths') AND substring(sold_at, 1, 7) = subscription.parameter('when')
              - SELECT * FROM refunds WHERE date(paid_at) = subscription.parameter('when') AND clerk = auth.user_id()
        """,
        {"tickets": [{"id": 1, "sold_at": "2031-04-05T10:00:00Z", "booth": 1}, {"id": 2, "booth": 2,
          "sold_at": "2031-04-06T10:00:00Z"}, {"id": 3, "sold_at": "2031-05-05T10:00:00Z", "booth": 1}],
         "refunds": [{"id": 4, "paid_at": "2031-06-01T23:00:00Z", "clerk": "kim"}, {"id": 5, "clerk": "kim",
          "paid_at": "2031-04-01T10:00:00Z"}, {"id": 6, "paid_at": "2031-06-01T10:00:00Z", "clerk": "lee"}]},
        {"tickets": [1], "refunds": [4]}, user={"sub": "kim", "booths": [1, 3]},
        subscriptions={"tickets": [{"when": "2031-04"}, {"when": "2031-06-01"}]}),
    form("values of a JSON column among what a shared query gives", """
        streams:
          labels:
            auto_subscribe: true
            with:
              my_vats: SELECT vat_no AS vat FROM vats WHERE brewer = auth.user_id()
            query: |
              SELECT * FROM labels
              WHERE print ->> '$.vats.0' IN my_vats OR json_extract(print, '$.cask') IN my_vats
        """,
        {"vats": [{"id": 1, "vat_no": "v1", "brewer": "kim"}, {"id": 2, "vat_no": "v2", "brewer": "lee"}],
         "labels": [{"id": 3, "print": {"vats": ["v1"]}}, {"id": 4, "print": {"vats": ["v2", "v1"]}},
                    {"id": 5, "print": {"cask": "v1"}}, {"id": 6, "print": {}}]},
        {"labels": [3, 5]}),
    form("another form of rows for newer clients", """
        streams:
          brews:
            auto_subscribe: true
            query: SELECT * FROM brews WHERE brewer = auth.user_id() AND connection.parameter('app') < 2
          newer:
            auto_subscribe: true
            query: >
              SELECT id, name || ' ' || year AS title FROM brews AS beers
              WHERE brewer = auth.user_id() AND connection.parameter('app') BETWEEN 2 AND 4
        """,
        {"brews": [{"id": 1, "brewer": "kim", "name": "ale", "year": 2031}, {"id": 2, "brewer": "lee"}]},
        {"brews": [], "beers": [{"id": 1, "title": "ale 2031"}]}, parameters={"app": 3}),
    form("a schema for each tenant", """
        streams:
          beds:
            auto_subscribe: true
            query: SELECT * FROM "%".beds WHERE beds.schema() IN auth.parameter('clinics') AND NOT free
          keys: {query: SELECT * FROM "clinic_%"."keys" k WHERE k.schema() = 'clinic_' || auth.parameter('own')}
        """,
        {"clinic_a.beds": [{"id": 1, "free": False}, {"id": 5, "free": True}], "clinic_b.beds": [{"id": 2}],
         "clinic_a.keys": [{"id": 3}], "clinic_b.keys": [{"id": 4}]},
        {"beds": [1], "k": [3]}, user={"sub": "kim", "clinics": ["clinic_a"], "own": "a"}, subscriptions=["keys"]),
    form("a table for each year", """
        streams:
          scans:
            query: |
              SELECT id, scans.table_suffix() AS year FROM "scans_%" AS scans
              WHERE scans.table_suffix() = subscription.parameter('year') AND doctor = auth.user_id()
          logs:
            auto_subscribe: true
            query: SELECT * FROM "log_%" WHERE _table_suffix != 'old' AND doctor = auth.user_id()
        """,
        {"scans_2030": [{"id": 1, "doctor": "kim"}], "scans_2031": [{"id": 2, "doctor": "kim"}, {"id": 3}],
         "log_new": [{"id": 4, "doctor": "kim"}], "log_old": [{"id": 5, "doctor": "kim"}]},
        {"scans": [{"id": 2, "year": "2031"}], "log_new": [4]}, subscriptions={"scans": {"year": "2031"}}),
    form("rows without an id",
        "SELECT row_id() AS id, code FROM codes WHERE lang = auth.parameter('lang')",
        {"codes": [{"code": "a", "lang": "no"}, {"code": "b", "lang": "fi"}]},
        {"codes": [{"code": "a"}]}, user={"sub": "kim", "lang": "no"}),
    form("a stream that nobody asked for", """
        streams:
          menu: {query: SELECT * FROM menu WHERE listed, auto_subscribe: true, priority: 0}
          cellar: {query: SELECT * FROM cellar WHERE host = auth.user_id(), priority: 2}
        """,
        {"menu": [{"id": 1, "listed": True}, {"id": 2}], "cellar": [{"id": 3, "host": "kim"}]},
        {"menu": [1], "cellar": []}),
    form("only what was asked for", """
        streams:
          menu: {query: SELECT * FROM menu, auto_subscribe: true}
          cellar: {query: SELECT * FROM cellar WHERE host = auth.user_id()}
        """,
        {"menu": [{"id": 1}], "cellar": [{"id": 3, "host": "kim"}, {"id": 4, "host": "lee"}]},
        {"cellar": [3]}, subscriptions=["cellar"], include_defaults=False),
]  # fmt: skip


@pytest.mark.parametrize(("config", "rows", "held", "asked"), STREAMS)
def test_shared_forms_of_a_stream(config: str, rows: Rows, held: Held, asked: Asked) -> None:
    check(3, config, rows, held, asked)
