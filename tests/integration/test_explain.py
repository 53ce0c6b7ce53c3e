"""After inserts, updates, deletes and key changes, what is explained of a row is what the device has of it."""

from __future__ import annotations

import random

from headwater.api.admin.route import AdminSettings
from tests.support.fix_admin import OPERATOR, running_admin
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import auto_streams

RULES = auto_streams(
    notes="SELECT * FROM notes WHERE owner = auth.user_id() AND NOT hidden",
    shared="SELECT note AS id, body FROM notes AS others"
    " WHERE room IN (SELECT room FROM members WHERE who = auth.user_id())",
)
USERS = ("a", "b", "c")


def test_explain_follows_rows(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute(
        "create table notes (id int primary key, owner text, room int, hidden bool, note text, body text)"
    )
    source_db.execute("create table members (who text, room int, primary key (who, room))")
    source_db.execute(
        "insert into notes select i, chr(97 + i % 3), i % 5, i % 7 = 0, 'n' || i, 'first' from generate_series(1, 60) i"
    )
    source_db.execute("insert into members values ('a', 1), ('b', 1), ('b', 2)")
    deployment = deploy(RULES).start()
    chance = random.Random(3)
    settings = AdminSettings((OPERATOR,), deployment.address, (deployment.settings,))
    had: dict[str, set[tuple[str, str]]] = {user: set() for user in USERS}
    with running_admin(settings) as admin:
        for _ in range(4):
            for _ in range(15):
                number = chance.randrange(1, 70)
                source_db.execute(
                    chance.choice([
                        f"update notes set owner = chr(97 + {number % 3}), body = 'later' where id = {number}",
                        f"update notes set hidden = not hidden where id = {number}",
                        f"update notes set room = {number % 5} where id = {number}",
                        f"update notes set id = id + 100 where id = {number}",
                        f"delete from notes where id = {number}",
                        f"delete from members where room = {number % 5}",
                        f"insert into members values ('{chr(97 + number % 3)}', {number % 5}) on conflict do nothing",
                    ])
                )  # fmt: skip
            for user in USERS:
                device = deployment.rows(user)
                asked = [("notes", str(chance.randrange(1, 170))) for _ in range(8)]
                asked += [("others", f"n{chance.randrange(1, 62)}") for _ in range(8)]
                asked += chance.sample(sorted(device), min(8, len(device)))
                asked += sorted(had[user] - device.keys())  # those that left
                had[user] |= device.keys()
                for table, row_id in asked:
                    found = admin.post("/api/headwater/v1/explain/row", client={"user": user}, table=table, id=row_id)
                    real = device.get((table, row_id))
                    assert found["included"] is (real is not None), (user, table, row_id, found)
                    if real is not None:
                        assert real in [place["data"] for place in found["places"]]
                    else:
                        assert found["because"]
        latest = source_db.connection.execute("update notes set hidden = false, owner = 'a', body = 'now' returning id")
        (row_id,) = latest.fetchall()[0]
        deployment.caught_up()
        about = {"client": {"user": "a"}, "table": "notes", "id": str(row_id)}
        (place,) = admin.post("/api/headwater/v1/explain/row", **about)["places"]
        ((committed, position),) = source_db.connection.execute(
            "select extract(epoch from now())::float8, pg_current_wal_lsn()::text"
        ).fetchall()
        assert place["data"]["body"] == "now"
        assert 0 <= committed - place["committed"] < 60
        assert place["source"] == "default"
        assert int(place["lsn"].split("/")[1], 16) <= int(position.split("/")[1], 16)
