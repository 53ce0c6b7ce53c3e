"""The config leads a source to another one's database, as after a mistake: nobody loses rows, and the others go on."""

from __future__ import annotations

from tests.support.fix_headwater import Deployment
from tests.support.fix_sources import NewSources, Sources
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

RULES = auto_streams(all=["SELECT * FROM orders.public.notes", "SELECT * FROM shop.public.notes AS goods"])


def notes(word: str) -> str:
    return f"""create table notes (id int primary key, body text);
               insert into notes select i, '{word}' || i from generate_series(1, 50) i"""


def two(new_sources: NewSources) -> Sources:
    return new_sources(RULES, {"orders": notes("order"), "shop": notes("ware")}).start()


def refused(deployment: Deployment) -> bool:
    cause = deployment.health().cause
    return cause is not None and cause.code == "HW_5006"


def test_connections_that_were_swapped(new_sources: NewSources) -> None:
    sources = two(new_sources)
    shown, before = sources.rows("a"), sources.any.op_count_now()
    assert len(shown) == 100
    sources.stop()
    orders, shop = sources["orders"], sources["shop"]
    orders.source, shop.source = shop.source, orders.source
    for each in sources:
        each.start(publish=False)
    wait_until(lambda: refused(orders) and refused(shop), "both to be refused")
    assert sources.any.op_count_now() == before
    sources.stop()
    orders.source, shop.source = shop.source, orders.source
    sources.start()
    assert sources.rows("a") == shown
    assert sources.any.op_count_now() == before


def test_others_go_on_while_one_is_refused(new_sources: NewSources) -> None:
    sources = two(new_sources)
    orders, shop = sources["orders"], sources["shop"]
    orders.stop()
    mistaken, orders.source = orders.source, shop.source
    orders.start(publish=False)
    wait_until(lambda: refused(orders), "the refusal")
    shop.source.execute("update notes set body = 'sold' where id = 7")
    shop.caught_up()
    shown = shop.rows("a")
    assert shown["goods", "7"]["body"] == "sold"
    assert shown["notes", "7"]["body"] == "order7"
    orders.stop()
    orders.source = mistaken
    sources.start()
    orders.source.execute("update notes set body = 'paid' where id = 7")
    assert sources.rows("a")["notes", "7"]["body"] == "paid"
