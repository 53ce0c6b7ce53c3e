"""Uploads to several databases: each table has its own, and a transaction is of one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from headwater.api.admin.route import AdminSettings
from headwater.errors import HeadwaterError
from headwater.oplog.lsn import Lsn
from headwater.source.connect import SourceSettings
from headwater.source.upload.errors import UploadRefusedError
from headwater.source.upload.letters import DeadLetters
from headwater.source.upload.prepare import check_uploads, prepare_uploads
from headwater.source.upload.routing import RoutedUploads
from headwater.source.upload.settings import UploadSettings
from headwater.telemetry.log_facts import facts_of
from tests.support.command import Outcome, headwater_here
from tests.support.fix_admin import OPERATOR, running_admin
from tests.support.fix_api import AUDIENCE, SECRET, Endpoint, make_token
from tests.support.fix_postgres import Connection, SourceDb
from tests.support.fix_service import client_auth, connection_to
from tests.support.fix_upload import NOTES, Device, Uploads, delete, patch, put
from tests.support.memory_store import MemoryStore
from tests.support.read_uploads import read_uploads
from tests.support.ruled_store import RuledStore
from tests.support.waiting import wait_until

DEALS = """
create table deals (id text primary key, owner text not null, title text check (title <> ''), tenant text);
alter table deals enable row level security;
create policy mine on deals using (owner = current_setting('request.jwt.claims', true)::json ->> 'sub');
"""
STILL_THERE = "select count(*) from headwater_upload.dead_letters where state = 'parked' and payload is not null"
ATTEMPTS = "select attempts from headwater_upload.dead_letters"
LETTERS = "/api/headwater/v1/letters"
LEDGER = "select count(*) from headwater_upload.taken"


@dataclass
class TwoSources:
    """Notes in the default database, deals in another."""

    notes: SourceDb
    deals: SourceDb
    role: str
    start: Callable[..., Endpoint]
    store: MemoryStore

    def __post_init__(self) -> None:
        self.notes.execute(NOTES)
        self.deals.execute(DEALS)

    @property
    def sources(self) -> tuple[SourceSettings, ...]:
        return self.notes.settings(), self.deals.settings(tag="crm")

    def settings(self, sources: tuple[SourceSettings, ...] = (), **upload: Any) -> UploadSettings:
        given = {"role": self.role, "tables": {"notes": {}, "deals": {"table": "crm.deals"}}, **upload}
        made, errors = read_uploads(given, sources or self.sources)
        assert made is not None, errors
        for each in made.by_source().values():
            prepare_uploads(each)
        return waits_never(made)

    def uploads(self, settings: UploadSettings | None = None, **upload: Any) -> Uploads:
        made = settings or self.settings(**upload)
        names = ("default", "crm")
        endpoint = self.start(self.store, upload=made, sources=names)
        endpoint.head.lsns = {name: Lsn(20) for name in names}
        return Uploads(self.notes, made, endpoint, make_token)

    def found(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """The titles in both databases."""
        return (
            self.notes.fetch("select id, title from notes order by id"),
            self.deals.fetch("select id, title from deals order by id"),
        )


def waits_never(settings: UploadSettings) -> UploadSettings:
    others = tuple(replace(each, wait_seconds=0) for each in settings.others)
    return replace(settings, wait_seconds=0, others=others)


@pytest.fixture
def two(
    source_db: SourceDb,
    crm_db: SourceDb,
    upload_role: str,
    start_endpoint: Callable[..., Endpoint],
    memory_store: MemoryStore,
) -> TwoSources:
    return TwoSources(source_db, crm_db, upload_role, start_endpoint, memory_store)


def note(number: str, **more: object) -> dict[str, Any]:
    return put("notes", number, owner="ann", title="note", **more)


def deal(number: str, **more: object) -> dict[str, Any]:
    return put("deals", number, **{"owner": "ann", "title": "deal", **more})


def test_each_table_is_written_in_its_source(two: TwoSources) -> None:
    device = two.uploads().device()
    device.applied(note("1"), note("2"))
    device.applied(deal("1"))
    device.applied(patch("deals", "1", title="won"), deal("2"))
    device.applied(delete("notes", "2"))
    assert two.found() == ([("1", "note")], [("1", "won"), ("2", "deal")])
    assert (two.notes.fetch(LEDGER), two.deals.fetch(LEDGER)) == ([(2,)], [(2,)])


def test_sent_again_changes_nothing(two: TwoSources) -> None:
    device = two.uploads().device()
    sent = [device.transaction(note("1")), device.transaction(deal("1")), device.transaction(note("2"))]
    assert [each["outcome"] for each in device.answers(*sent)] == ["applied"] * 3
    assert [each["outcome"] for each in device.answers(*sent)] == ["already_applied"] * 3


def test_transaction_of_two_sources_is_refused_whole(two: TwoSources) -> None:
    device = two.uploads().device()
    sent = device.transaction(note("1"), deal("1"), note("2"))
    (answer,) = device.answers(sent)
    error = answer["error"]
    assert (answer["outcome"], error["code"], error["op_id"], error["type"]) == ("parked", "HW_6133", 2, "deals")
    assert "default and crm" in error["description"]
    assert two.found() == ([], [])
    assert device.answers(sent) == [answer], "whoever sends it again gets the same answer"
    device.applied(deal("3"))
    assert two.found() == ([], [("3", "deal")]), "the queue goes on"


def test_write_to_a_listed_source_that_is_gone_is_refused(two: TwoSources) -> None:
    given = {"role": two.role, "tables": {"notes": {}, "deals": {"source": "crm"}}}
    made, warnings = read_uploads(given, two.sources[:1], listed=True)
    assert made is not None, warnings
    prepare_uploads(made)
    device = two.uploads(waits_never(made)).device()
    (answer,) = device.answers(device.transaction(deal("1")))
    assert (answer["outcome"], answer["error"]["code"], answer["error"]["type"]) == ("parked", "HW_6110", "deals")
    assert "source is not among the connections at present" in answer["error"]["description"]
    device.applied(note("1"))
    assert two.found() == ([("1", "note")], [])


def test_split_applies_each_part_once(two: TwoSources) -> None:
    device = two.uploads(across_sources="split").device()
    sent = device.transaction(note("1"), deal("1"), note("2"))
    assert [each["outcome"] for each in device.answers(sent)] == ["applied"]
    assert [each["outcome"] for each in device.answers(sent)] == ["already_applied"]
    assert two.found() == ([("1", "note"), ("2", "note")], [("1", "deal")])


def test_split_parks_only_the_part_that_is_refused(two: TwoSources) -> None:
    device = two.uploads(across_sources="split").device()
    sent = device.transaction(note("1"), deal("1", title=""))
    (answer,) = device.answers(sent)
    assert (answer["outcome"], answer["error"]["code"], answer["dead_letter"]) == ("parked", "HW_6117", "crm:1")
    assert two.found() == ([("1", "note")], [])
    assert device.answers(sent) == [answer]


def test_split_goes_on_after_a_source_was_away(two: TwoSources, maintenance: Connection) -> None:
    device = two.uploads(across_sources="split").device()
    sent = device.transaction(note("1"), deal("1"))
    with Away(two.deals, maintenance):
        answer = device.post(sent)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "HW_6103")
    assert two.found() == ([("1", "note")], []), "the first part is there already"
    assert [each["outcome"] for each in device.answers(sent)] == ["applied"]
    assert two.found() == ([("1", "note")], [("1", "deal")])
    assert two.notes.fetch(LEDGER) == [(1,)]


class Away:
    """A database that takes no connections."""

    def __init__(self, db: SourceDb, maintenance: Connection) -> None:
        self._name = db.name
        self._maintenance = maintenance

    def __enter__(self) -> None:
        self._maintenance.execute(f"alter database {self._name} allow_connections false")
        self._maintenance.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = %s and application_name like 'headwater%%'",
            [self._name],
        )

    def __exit__(self, *_: object) -> None:
        self._maintenance.execute(f"alter database {self._name} allow_connections true")


def test_source_that_is_down_delays_no_uploads_to_others(two: TwoSources) -> None:
    settings = two.settings()
    nowhere = replace(settings.others[0], login=replace(settings.others[0].login, port=1))
    uploads = two.uploads(replace(settings, others=(nowhere,)))
    stuck, well = uploads.device("bob"), uploads.device()
    waits = stuck.transaction(deal("1"))
    for number in range(20):
        assert stuck.post(waits).status_code == 503
        well.applied(note(str(number)))


def test_letters_of_two_sources_have_names_of_their_own(two: TwoSources) -> None:
    uploads = two.uploads()
    device = uploads.device()
    first, second = device.send(put("notes", "1", owner="ann", title="")), device.send(deal("1", title=""))
    assert (first["dead_letter"], second["dead_letter"]) == ("default:1", "crm:1")
    assert refused(device) == (["crm:1", "default:1"], True)


def refused(device: Device) -> tuple[list[object], bool]:
    """The dead letters that the device is told of, and whether these are all."""
    headers = {"authorization": f"Token {make_token(device.user)}"}
    answer = device.uploads.endpoint.http.get(f"/upload/refused?client_id={device.client_id}", headers=headers)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    return [each["dead_letter"] for each in told["refused"]], told["complete"]


def test_source_that_is_down_hides_no_letters_of_others(two: TwoSources, maintenance: Connection) -> None:
    device = two.uploads().device()
    device.parked(put("notes", "1", owner="ann", title=""))
    device.parked(deal("1", title=""))
    with Away(two.deals, maintenance):
        assert refused(device) == (["default:1"], False)
    assert refused(device) == (["crm:1", "default:1"], True)


def retry(settings: UploadSettings, source: str, letter: int) -> None:
    async def retried() -> None:
        routed = RoutedUploads(settings)
        try:
            await DeadLetters(settings, routed, source).retry(letter)
        finally:
            await routed.close()

    asyncio.run(retried())


def test_letter_of_two_sources_is_not_applied_by_half(two: TwoSources) -> None:
    settings = two.settings()
    device = two.uploads(settings).device()
    device.parked(note("1"), deal("1"))
    with pytest.raises(UploadRefusedError, match="two sources"):
        retry(settings, "default", 1)
    assert two.found() == ([], [])
    assert two.notes.fetch(ATTEMPTS) == [(2,)]


def test_letter_of_two_sources_is_applied_once_it_may_be_split(two: TwoSources) -> None:
    device = two.uploads().device()
    sent = device.transaction(note("1"), deal("1"), note("2"))
    assert device.answers(sent)[0]["error"]["code"] == "HW_6133"
    split = two.settings(across_sources="split")
    retry(split, "default", 1)
    assert two.found() == ([("1", "note"), ("2", "note")], [("1", "deal")])
    assert two.notes.fetch(STILL_THERE) == [(0,)]
    again = two.uploads(split)
    assert [each["outcome"] for each in Device(again, "ann", device.client_id).answers(sent)] == ["already_applied"]


def test_letter_stays_whole_when_a_part_of_it_is_refused_again(two: TwoSources) -> None:
    device = two.uploads().device()
    device.parked(note("1"), deal("1", title=""))
    split = two.settings(across_sources="split")
    with pytest.raises(UploadRefusedError, match="CheckViolation"):
        retry(split, "default", 1)
    assert two.found() == ([], [])
    assert (two.notes.fetch(STILL_THERE), two.deals.fetch(STILL_THERE)) == ([(1,)], [(0,)])
    two.deals.execute("alter table deals drop constraint deals_title_check")
    retry(split, "default", 1)
    assert two.found() == ([("1", "note")], [("1", "")])


def test_unknown_table_is_refused(two: TwoSources) -> None:
    device = two.uploads().device()
    assert device.parked(put("elsewhere", "1", owner="ann"))["code"] == "HW_6110"
    assert device.parked(deal("1"), put("elsewhere", "1", owner="ann"))["code"] == "HW_6110"
    assert two.found() == ([], [])


def test_write_checkpoint_of_what_was_uploaded(two: TwoSources) -> None:
    uploads = two.uploads()
    device = uploads.device()

    def sent(*transactions: dict[str, Any]) -> str:
        body = {"client_id": device.client_id, "transactions": list(transactions), "write_checkpoint": True}
        answer: str = uploads.post("ann", body).json()["write_checkpoint"]
        return answer

    assert "write_checkpoint" not in device.post(device.transaction(note("0"))).json(), "only who asks gets it"
    assert sent(device.transaction(deal("1"))) == "1"
    write = two.store.write_checkpoint(f"ann/{device.client_id}")
    assert write is not None
    assert write.lsns == {"crm": 20}
    uploads.endpoint.head.down = {"crm"}
    assert sent(device.transaction(note("1"))) == "2", "it waits for the source that was written to, and no other"
    body = {"client_id": device.client_id, "transactions": [device.transaction(deal("2"))], "write_checkpoint": True}
    answer = uploads.post("ann", body)
    assert answer.status_code == 200
    assert "write_checkpoint" not in answer.json(), "the device asks for it itself"


@dataclass
class Shards(TwoSources):
    """The same table in two databases, by tenant."""

    def __post_init__(self) -> None:
        for db in (self.notes, self.deals):
            db.execute(DEALS)

    @property
    def sources(self) -> tuple[SourceSettings, ...]:
        return self.notes.settings(tag="crm", shard="eu"), self.deals.settings(tag="crm", shard="us")

    def found(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        query = "select id, title from deals order by id"
        return self.notes.fetch(query), self.deals.fetch(query)


@pytest.fixture
def shards(
    source_db: SourceDb,
    crm_db: SourceDb,
    upload_role: str,
    start_endpoint: Callable[..., Endpoint],
    memory_store: MemoryStore,
) -> Shards:
    return Shards(source_db, crm_db, upload_role, start_endpoint, memory_store)


def test_claim_tells_the_shard(shards: Shards) -> None:
    uploads = shards.uploads(tables={"deals": {"source": "crm", "shard": {"claim": "app.region"}}})

    def send(number: int, region: object) -> dict[str, Any]:
        crud = [{"op_id": number, **deal(str(number))}]
        body = {"client_id": f"c{region}", "transactions": [{"crud": crud}]}
        (answer,) = uploads.post("ann", body, app={"region": region}).json()["transactions"]
        found: dict[str, Any] = answer
        return found

    assert send(1, "eu")["outcome"] == "applied"
    assert send(2, "us")["outcome"] == "applied"
    assert shards.found() == ([("1", "deal")], [("2", "deal")])
    for region in ("asia", None, 7, ["eu"], True):
        assert send(3, region)["error"]["code"] == "HW_6134", region
    assert shards.found() == ([("1", "deal")], [("2", "deal")])


def test_claim_with_dots_in_its_name_tells_the_shard(shards: Shards) -> None:
    claim = "https://example.com/region"
    uploads = shards.uploads(tables={"deals": {"source": "crm", "shard": {"claim": claim}}})
    body = {"client_id": "phone", "transactions": [{"crud": [{"op_id": 1, **deal("1")}]}]}
    assert uploads.post("ann", body, **{claim: "us"}).json()["transactions"][0]["outcome"] == "applied"
    assert shards.found() == ([], [("1", "deal")])


def test_column_tells_the_shard(shards: Shards) -> None:
    rule = {"column": "tenant", "map": {"acme": "eu", "7": "us"}}
    uploads = shards.uploads(tables={"deals": {"source": "crm", "shard": rule}})
    device: Device = uploads.device()
    device.applied(deal("1", tenant="acme"))
    device.applied(deal("2", tenant=7))
    device.applied(patch("deals", "1", {"tenant": "acme"}, title="won"))
    device.applied(delete("deals", "2", {"tenant": "7"}))
    assert shards.found() == ([("1", "won")], [])
    assert device.parked(deal("3", tenant="nobody"))["code"] == "HW_6134"
    assert device.parked(patch("deals", "1", {"tenant": "acme"}, tenant="7"))["code"] == "HW_6134"
    assert device.parked(deal("3", tenant="acme"), deal("4", tenant="7"))["code"] == "HW_6133"
    waits = device.post(device.transaction(patch("deals", "1", title="lost")))
    assert (waits.status_code, waits.json()["error"]["code"]) == (503, "HW_6131")
    assert shards.found() == ([("1", "won")], [])


def test_update_of_the_shard_column_needs_the_previous_value(shards: Shards) -> None:
    rule = {"column": "tenant", "map": {"acme": "eu", "7": "us"}}
    device = shards.uploads(tables={"deals": {"source": "crm", "shard": rule}}).device()
    device.applied(deal("1", tenant="acme"))
    device.applied(deal("1", tenant="7", title="another tenant's"))
    moves = device.post(device.transaction(patch("deals", "1", tenant="7", title="moved")))
    assert (moves.status_code, moves.json()["error"]["code"]) == (503, "HW_6131")
    assert "HW_6135" in moves.text
    assert shards.found() == ([("1", "deal")], [("1", "another tenant's")])
    device.applied(patch("deals", "1", {"tenant": "acme"}, tenant="acme", title="won"))
    assert shards.found() == ([("1", "won")], [("1", "another tenant's")])


def by_tenant(**tenants: str) -> dict[str, Any]:
    return {"deals": {"source": "crm", "shard": {"column": "tenant", "map": tenants}}}


def test_letter_without_a_shard_is_applied_in_the_one_that_the_map_has_now(shards: Shards) -> None:
    device = shards.uploads(tables=by_tenant(acme="eu")).device()
    sent = device.transaction(deal("1", tenant="globex"))
    assert device.answers(sent)[0]["error"]["code"] == "HW_6134"
    mended = shards.settings(tables=by_tenant(acme="eu", globex="us"))
    shards.deals.execute("alter table deals add check (title <> 'deal')")
    with pytest.raises(UploadRefusedError, match="CheckViolation"):
        retry(mended, "crm/eu", 1)
    assert (shards.notes.fetch(ATTEMPTS), shards.deals.fetch(STILL_THERE)) == ([(2,)], [(0,)])
    shards.deals.execute("alter table deals drop constraint deals_title_check1")
    retry(mended, "crm/eu", 1)
    assert shards.found() == ([], [("1", "deal")])
    assert shards.notes.fetch(STILL_THERE) == [(0,)]
    again = Device(shards.uploads(mended), "ann", device.client_id)
    assert [each["outcome"] for each in again.answers(sent)] == ["already_applied"]
    shards.deals.execute("update deals set title = 'changed since'")
    with pytest.raises(HeadwaterError, match="no dead letter 1 waits"):
        retry(mended, "crm/eu", 1)
    assert shards.found() == ([], [("1", "changed since")])


def test_retry_that_was_cut_off_after_it_wrote_elsewhere_writes_once(shards: Shards) -> None:
    device = shards.uploads(tables=by_tenant(acme="eu")).device()
    sent = device.transaction(deal("1", tenant="globex"))
    device.answers(sent)
    mended = shards.settings(tables=by_tenant(acme="eu", globex="us"))
    Device(shards.uploads(mended), "ann", device.client_id).answers(sent)  # as if by the retry
    shards.deals.execute("update deals set title = 'changed since'")
    retry(mended, "crm/eu", 1)
    assert shards.found() == ([], [("1", "changed since")])
    assert shards.notes.fetch(STILL_THERE) == [(0,)]


def test_what_has_no_shard_is_kept_where_it_belongs(shards: Shards) -> None:
    device = shards.uploads(tables=by_tenant(acme="us", globex="eu")).device()
    device.applied(deal("1", tenant="acme"))
    device.parked(patch("deals", "1", {"tenant": "acme"}, tenant="globex"))
    device.parked(deal("2", tenant="nobody"), deal("3", tenant="acme"))
    assert (shards.notes.fetch(STILL_THERE), shards.deals.fetch(STILL_THERE)) == ([(0,)], [(2,)])


def test_what_has_no_shard_is_kept_in_a_source_that_is_none(
    two: TwoSources, start_endpoint: Callable[..., Endpoint]
) -> None:
    shards = two.deals.settings(tag="app", shard="a"), two.deals.settings(tag="app", shard="b")
    tables = {"deals": {"source": "app", "shard": {"claim": "tenant"}}, "notes": {"source": "default"}}
    settings = two.settings((*shards, two.notes.settings()), tables=tables)
    endpoint = start_endpoint(two.store, upload=settings, sources=("app/a", "app/b", "default"))
    device = Uploads(two.notes, settings, endpoint, make_token).device()
    answer = device.send(deal("1"))
    assert (answer["dead_letter"], answer["error"]["code"]) == ("default:1", "HW_6134")


def test_prepare_and_check_name_what_is_wrong_in_each_source(two: TwoSources, tmp_path: Path) -> None:
    settings = two.settings()
    two.deals.execute("drop table deals")
    checked = {name: check_uploads(each) for name, each in settings.by_source().items()}
    assert checked["default"] == ()
    assert "public.deals" in str(checked["crm"][0])


@pytest.fixture
def command(two: TwoSources, tmp_path: Path) -> Callable[..., Outcome]:
    """`command("upload", "list")` runs it with a config of both sources."""
    connections = [
        connection_to(two.notes.server.port, two.notes.name, "postgres"),
        {**connection_to(two.deals.server.port, two.deals.name, "postgres"), "tag": "crm"},
    ]
    config = {
        "replication": {"connections": connections},
        "storage": {"type": "sqlite", "path": str(tmp_path / "store")},
        "client_auth": client_auth(SECRET, AUDIENCE),
        "upload": {"role": two.role, "tables": {"notes": {}, "deals": {"source": "crm"}}},
        "sync_config": {"content": "streams: {notes: {query: SELECT * FROM notes}}\nconfig: {edition: 3}"},
    }
    path = tmp_path / "headwater.json"
    path.write_text(json.dumps(config))
    return lambda *arguments: headwater_here(*arguments, "--config", path)


def test_commands_name_letters_by_source(two: TwoSources, command: Callable[..., Outcome]) -> None:
    device = two.uploads().device()
    for number in range(2):
        device.parked(put("notes", str(number), owner="ann", title=""))
        device.parked(deal(str(number), title=""))
    listed = json.loads(command("upload", "list", "--json").out)
    assert [each["id"] for each in listed] == ["default:1", "default:2", "crm:1", "crm:2"]
    assert "crm:2  " in command("upload", "list").out

    def page(*arguments: str) -> list[object]:
        return [each["id"] for each in json.loads(command("upload", "list", "--json", *arguments).out)]

    first, second, third, fourth = page()
    assert page("--limit", "3") == [first, second, third]
    assert page("--after", "crm:1") == [fourth]
    assert page("--after", "default:2") == [third, fourth]
    assert json.loads(command("upload", "show", "crm:1").out)["crud"][0]["type"] == "deals"
    two.deals.execute("alter table deals drop constraint deals_title_check")
    retried = command("upload", "retry", "default:1", "crm:1")
    assert (retried.code, "crm:1: applied" in retried.out) == (1, True), "the other one is refused again"
    assert two.found() == ([], [("0", "")])
    assert command("upload", "discard", "default:1").code == 0
    assert command("upload", "retry", "--all").code == 1
    assert page() == ["default:2"]
    for wrong in ("nowhere:1", "crm:", "crm"):
        assert command("upload", "show", wrong).code == 2, wrong


def test_number_alone_means_the_only_letter_that_has_it(two: TwoSources, command: Callable[..., Outcome]) -> None:
    device = two.uploads().device()
    device.parked(put("notes", "1", owner="ann", title=""))
    device.parked(deal("1", title=""))
    device.parked(deal("2", title=""))
    both = command("upload", "discard", "2", "1")
    assert (both.code, "default:1, crm:1" in both.err) == (2, True), both
    assert (two.notes.fetch(STILL_THERE), two.deals.fetch(STILL_THERE)) == ([(1,)], [(2,)])
    assert json.loads(command("upload", "show", "2").out)["id"] == "crm:2"
    assert command("upload", "discard", "2").out == "crm:2: discarded\n"
    assert "no dead letter 2 waits" in command("upload", "discard", "2").err


@pytest.mark.parametrize("address", ["/{database}", "127.0.0.1:{port}/{database}"])
def test_login_of_an_administrator_is_for_both(two: TwoSources, command: Callable[..., Outcome], address: str) -> None:
    address = address.format(port=two.notes.server.port, database=two.notes.name)
    prepare = ("source", "prepare", "--upload", "--no-triggers", "--admin-uri")
    refused = command(*prepare, f"postgresql://postgres@{address}")
    assert (refused.code, "--source" in refused.err, refused.out) == (1, True, ""), refused
    assert two.deals.fetch("select from pg_publication") == two.notes.fetch("select from pg_publication") == []
    done = command(*prepare, "postgresql://postgres@")
    assert (done.code, done.out.count("ready: uploads to 1 table")) == (0, 2), done
    one = command(*prepare, f"postgresql://postgres@{address}", "--source", "default")
    assert one.code == 0, one


def test_preparing_and_checking_both(two: TwoSources, command: Callable[..., Outcome]) -> None:
    printed = command("source", "prepare", "--upload", "--print-sql").out
    first, second = printed.split("-- source crm")
    assert first.count("CREATE SCHEMA headwater_upload") == second.count("CREATE SCHEMA headwater_upload") == 1
    assert ('"deals"' in first, '"notes"' in second) == (False, False)
    prepared = command("source", "prepare", "--upload")
    assert (prepared.code, prepared.out.count("ready: uploads to 1 table")) == (0, 2), prepared
    two.notes.execute("drop table notes")
    assert command("source", "prepare", "--upload").code == 1
    assert "ready: uploads to 1 table" in command("source", "prepare", "--upload").out, "the other one is prepared"
    assert two.deals.fetch(LEDGER) == two.notes.fetch(LEDGER) == [(0,)]
    assert "crm: tried as postgres" in command("doctor").out


def test_wrong_password_of_one_source_makes_only_its_writes_wait(
    source_with: Callable[..., SourceDb],
    start_endpoint: Callable[..., Endpoint],
    memory_store: MemoryStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Databases of two teams: each has its own role, and a login that becomes it."""
    notes = source_with()
    notes.execute(f"{NOTES}; create role crm_login login password 'new'")
    notes.execute("create database crm")
    deals = SourceDb(notes.server, "crm")
    deals.execute(f"{DEALS}; alter table deals alter tenant set default current_user")
    hba = notes.server.data_dir / "pg_hba.conf"
    hba.write_text("host all crm_login 127.0.0.1/32 scram-sha-256\n" + hba.read_text(), encoding="utf-8")
    notes.execute("select pg_reload_conf()")
    upload = {
        "role": "notes_app",
        "tables": {"notes": {}, "deals": {"source": "crm"}},
        "sources": {"crm": {"role": "crm_app", "username": "crm_login", "password": "old"}},
    }
    made, errors = read_uploads(upload, (notes.settings(), deals.settings(tag="crm")))
    assert made is not None, errors
    settings = waits_never(made)
    for name, each in settings.by_source().items():
        prepare_uploads(each, (deals if name == "crm" else notes).settings())
    wait_until(lambda: check_uploads(settings.others[0]) != (), "the server to ask for the password")
    device = Uploads(notes, settings, start_endpoint(memory_store, upload=settings), make_token).device()
    waits = device.transaction(deal("1"))
    answer = device.post(waits)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "HW_6131")
    assert "HW_2002" in answer.text
    cause = f"the source database rejects user name or password ({deals.settings().address}); "
    cause += "set username and password in upload.sources.crm; a new password: ALTER ROLE crm_login PASSWORD"
    assert any(cause in str(facts_of(record).get("reason")) for record in caplog.records)
    others = device.uploads.device("bob")
    others.applied(put("notes", "1", owner="bob", title="note"))

    config = {
        "replication": {
            "connections": [
                connection_to(notes.server.port, "postgres"),
                {**connection_to(notes.server.port, "crm"), "tag": "crm"},
            ]
        },
        "storage": {"type": "sqlite", "path": str(tmp_path / "store")},
        "client_auth": client_auth(SECRET, AUDIENCE),
        "upload": upload,
        "sync_config": {"content": "streams: {notes: {query: SELECT * FROM notes}}\nconfig: {edition: 3}"},
    }
    path = tmp_path / "headwater.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    told = headwater_here("doctor", "--config", path).out
    assert "default: tried as postgres, who becomes notes_app: 1 table can be written" in told
    assert "FAIL  uploads  crm: [HW_2002]" in told
    assert "set username and password in upload.sources.crm" in told

    notes.execute("alter role crm_login password 'old'")
    assert device.answers(waits)[0]["outcome"] == "applied"
    assert deals.fetch("select id, tenant from deals") == [("1", "crm_app")], "it was written as the team's role"
    assert check_uploads(settings.others[0]) == ()
    deals.connection.close()


def test_operators_name_letters_by_source(two: TwoSources, ruled: RuledStore) -> None:
    uploads = two.uploads()
    device = uploads.device()
    device.parked(put("notes", "1", owner="ann", title=""))
    device.parked(deal("1", title=""))
    device.parked(deal("2", title=""))
    with running_admin(AdminSettings((OPERATOR,), ruled.store.address, two.sources, upload=uploads.settings)) as admin:
        first = admin.get(f"{LETTERS}", limit=2)
        assert ([(each["id"], each["source"]) for each in first["letters"]], first["more"]) == (
            [("default:1", "default"), ("crm:1", "crm")],
            True,
        )
        assert [each["id"] for each in admin.get(LETTERS, after="crm:1")["letters"]] == ["crm:2"]
        assert admin.refusal("GET", LETTERS, 404, params={"after": "nowhere:1"})["code"] == "HW_6202"
        told = admin.post(f"{LETTERS}/discard", ids=["1", "nowhere:1", "2", "crm:1"])["results"]
        assert [each["outcome"] for each in told] == ["failed", "failed", "discarded", "discarded"]
        assert "default:1, crm:1" in told[0]["message"]
