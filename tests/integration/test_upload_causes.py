"""Why a write is not done, who can mend it, and what the device is told: a case for each row of the table in the docs.

All share a database and an endpoint; each has a table of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.source.connect import SourceSettings
from headwater.source.upload import apply, ledger
from headwater.source.upload.errors import BY_APP
from headwater.source.upload.prepare import prepare_uploads
from headwater.source.upload.settings import Conflict, TableRule, UploadSettings
from tests.support.fix_api import Endpoint, make_token, running
from tests.support.fix_logs import line_of
from tests.support.fix_postgres import Connection, SourceDb
from tests.support.fix_upload import Device, Entry, Uploads, patch, put
from tests.support.memory_store import MemoryStore

DOCS = Path(__file__).parents[2] / "docs" / "uploads.md"
ROLE = "causes_app"

TABLE = """
create table {t} (id text primary key, owner text default 'ann', title text check (title <> ''), n integer);
alter table {t} enable row level security;
create policy mine on {t} using (owner = current_setting('request.jwt.claims', true)::json ->> 'sub');
"""
TRIGGER = """
create function {t}_does() returns trigger language plpgsql as $$begin %s; return new; end$$;
create trigger t before insert on {t} for each row execute function {t}_does();
"""


@dataclass(frozen=True)
class Case:
    """A cause, as the docs name it. `breaks` is run before the device sends `entry`, `mends` afterwards; `{t}` stands
    for the table and `{role}` for the upload role. `said` is what an operator finds in the record of what waits."""

    cause: str
    code: str
    breaks: str = ""
    mends: str = ""
    sqlstate: str | None = None
    entry: Entry = field(default_factory=lambda: put("", "1", title="x"))
    rule: dict[str, Any] = field(default_factory=dict)
    said: str = ""


USER = [
    Case(
        "a policy does not allow the new row", "HW_6117", sqlstate="42501", entry=put("", "1", owner="ben"),
    ),
    Case(
        "the user sees the row, but a policy does not let it be changed", "HW_6114",
        "create policy s on {t} for select using (true); insert into {t} values ('1', 'ben')",
        entry=patch("", "1", title="y"),
    ),
    Case("the row is gone, or the user does not see it", "HW_6113", entry=patch("", "9", title="y")),
    Case(
        "a row that the user does not see has this id", "HW_6117", "insert into {t} values ('1', 'ben')",
        sqlstate="23505",
    ),
    Case("a constraint refuses the values", "HW_6117", sqlstate="23514", entry=put("", "1", title="")),
    Case(
        "a column that must not be null is set to null", "HW_6117", "alter table {t} alter title set not null",
        sqlstate="23502", entry=put("", "1", title=None),
    ),
    Case("a value does not fit its column", "HW_6117", sqlstate="22P02", entry=put("", "1", n="four")),
    Case(
        "a function or trigger raises an exception, with whatever code", "HW_6140",
        TRIGGER % "raise exception 'closed on Sundays' using errcode = '42501'", sqlstate="42501",
    ),
    Case(
        "somebody else changed the row (`reject_changed`)", "HW_6112", "insert into {t} values ('1', 'ann', 'new')",
        entry=patch("", "1", {"title": "old"}, title="y"), rule={"conflict": Conflict.REJECT_CHANGED},
    ),
    Case(
        "`upload.tables` does not allow the table, the column or the operation", "HW_6110",
        rule={"columns": frozenset({"title"})}, entry=put("", "1", n=1),
    ),
    Case("the entry is malformed", "HW_6111", entry={"op": "PUT", "type": "", "id": 5}),
]  # fmt: skip

OPERATOR = [
    Case(
        "the upload role lacks a right to the table", "HW_6122", "revoke insert on {t} from {role}",
        "grant insert on {t} to {role}", said='GRANT INSERT ON "public"."{t}" TO "{role}"',
    ),
    Case(
        "the upload role lacks the right to a sequence", "HW_6132", "alter table {t} add s serial",
        "grant usage on {t}_s_seq to {role}", said="GRANT USAGE ON SEQUENCE public.{t}_s_seq TO {role}",
    ),
    Case(
        "a trigger writes to a table to which the role has no right", "HW_6132",
        'create table permission (); create table "{t} audit" (id text);'
        + TRIGGER % 'insert into "{t} audit" values (new.id)',
        'drop table permission; grant insert on "{t} audit" to {role}',
        said='GRANT INSERT ON public."{t} audit" TO {role}',
    ),
    Case(
        "a policy refuses what a trigger writes to another table", "HW_6132",
        "create table {t}_log (id text); alter table {t}_log enable row level security;"
        "grant insert on {t}_log to {role};" + TRIGGER % "insert into {t}_log values (new.id)",
        "create policy a on {t}_log for insert with check (true)", said="{t}_log",
    ),
    Case(
        "policies need each other", "HW_6132",
        "create policy a on {t} using (exists (select from {t} x))", "drop policy a on {t}", said="(42P17)",
    ),
    Case(
        "a policy, trigger or default calls a function that is gone", "HW_6132",
        TRIGGER % "perform {t}_helps()", "create function {t}_helps() returns int language sql as 'select 1'",
        said="{t}_helps",
    ),
    Case(
        "a policy reads a setting that is missing", "HW_6132",
        "create policy a on {t} as restrictive using (current_setting('app.tenant') <> '')", "drop policy a on {t}",
        said="app.tenant",
    ),
    Case(
        "a policy casts what is not of that type, such as a claim of the token", "HW_6132",
        "create policy a on {t} as restrictive using ((current_setting('request.jwt.claim.sub')::uuid) is not null)",
        "drop policy a on {t}", said="(22P02)",
    ),
    Case(
        "the table does not have the column (any more)", "HW_6118", "alter table {t} drop column title",
        "alter table {t} add title text", said='the table has no column "title" (public.{t})',
    ),
    Case(
        "only Postgres may write the column", "HW_6118",
        "alter table {t} add s integer generated always as identity", "alter table {t} alter s drop identity",
        entry=put("", "1", s=5), said='Postgres alone writes column "s" (public.{t})',
    ),
    Case(
        "a column that the device does not send is required and has no default", "HW_6132",
        "alter table {t} add kind text not null", "alter table {t} alter kind set default 'a'",
        said="public.{t}.kind a default",
    ),
    Case(
        "no partition takes the row", "HW_6132",
        "drop table {t}; create table {t} (id text primary key, owner text, title text) partition by list (id);"
        "alter table {t} enable row level security; create policy p on {t} using (true); grant all on {t} to {role}",
        "create table {t}_1 partition of {t} default", said="PARTITION OF public.{t}",
    ),
    Case(
        "the table does not exist, or has no key", "HW_6122", "alter table {t} rename to {t}_away",
        "alter table {t}_away rename to {t}", said="the table is not in the source",
    ),
    Case(
        "row-level security is off", "HW_6122", "alter table {t} disable row level security",
        "alter table {t} enable row level security", said='ALTER TABLE "public"."{t}" ENABLE ROW LEVEL SECURITY',
    ),
    Case(
        "row-level security does not apply to the upload role", "HW_6121", "alter role {role} bypassrls",
        "alter role {role} nobypassrls",
    ),
    Case(
        "`source prepare --upload` has not been run", "HW_6120", "alter schema headwater_upload rename to away",
        "alter schema away rename to headwater_upload",
    ),
]  # fmt: skip

PASSING = [
    Case("a lock is held for longer than `lock_timeout_seconds`", "HW_6103"),
    Case(
        "a deadlock or a serialization failure, four times", "HW_6103",
        TRIGGER % "raise exception 'again' using errcode = '40001'", "drop trigger t on {t}",
    ),
    Case(
        "the connection is lost, or the source restarts", "HW_6103",
        (TRIGGER + "alter function {t}_does() security definer;") % "perform pg_terminate_backend(pg_backend_pid())",
        "drop trigger t on {t}",
    ),
    Case(
        "the database is read-only", "HW_6103",
        TRIGGER % "perform set_config('transaction_read_only', 'on', true); create table {t}_x ()",
        "drop trigger t on {t}",
    ),
    Case(
        "the disk is full, or memory or connections have run out", "HW_6103",
        TRIGGER % "raise exception 'could not extend file' using errcode = '53100'", "drop trigger t on {t}",
    ),
]  # fmt: skip

OF_POLICIES = [
    Case(
        "a function that a policy calls casts a claim", "HW_6132",
        "create function {t}_org() returns uuid language plpgsql as"
        " $$begin return current_setting('request.jwt.claim.sub'); end$$;"
        "create policy a on {t} as restrictive using ({t}_org() is not null)", "drop policy a on {t}", said="(22P02)",
    ),
    Case(
        "a claim that a policy reads has another form", "HW_6132",
        "create policy a on {t} as restrictive using"
        " (owner in (select jsonb_array_elements_text(current_setting('request.jwt.claims')::jsonb)))",
        "drop policy a on {t}", said="(22023)",
    ),
]  # fmt: skip

SLOW = [
    Case("the writes of one transaction take more than 60 s", "HW_6119", TRIGGER % "perform pg_sleep(60)"),
    Case(
        "a statement takes longer than `statement_timeout_seconds`", "HW_6119",
        TRIGGER.replace("trigger t", "constraint trigger t").replace("before insert", "after insert").replace(
            "for each", "deferrable initially deferred for each") % "perform pg_sleep(60)",
    ),
]  # fmt: skip

# Errors of values by themselves, with codes that others have, too
OF_VALUES = [
    Case(
        "null in a column of a domain that takes none", "HW_6117", sqlstate="23502", entry=put("", "1", d=None),
        breaks="create domain {t}_d as text not null; alter table {t} add d {t}_d default 'x'",
    ),
    Case(
        "a name of what does not exist", "HW_6117", "alter table {t} add d regconfig", sqlstate="42704",
        entry=put("", "1", d="klingon"),
    ),
    Case("a bad name", "HW_6117", "alter table {t} add d regclass", sqlstate="42602", entry=put("", "1", d="a b")),
    Case(
        "JSON nested too deeply", "HW_6117", "alter table {t} add d jsonb", sqlstate="54001",
        entry=put("", "1", d="[" * 100_000),
    ),
    Case(
        "a text that a constraint can't read", "HW_6117", "alter table {t} add check (title::json is not null)",
        sqlstate="22P02",
    ),
    Case(
        "a text that a stored column can't read", "HW_6117", sqlstate="22P02",
        breaks="alter table {t} add d int generated always as ((title::jsonb ->> '%')::int) stored",
    ),
    Case(
        "a text that a trigger can't read", "HW_6117", TRIGGER % "perform new.title::json", sqlstate="22P02",
    ),
    Case(
        "a text that a conflict function can't read", "HW_6117",
        "create function merge(tab text, op text, id text, data jsonb, old jsonb) returns jsonb language plpgsql as"
        " $$begin perform (data ->> 'title')::int; return data; end$$", sqlstate="22P02",
        rule={"conflict": Conflict.FUNCTION, "function": ("public", "merge")},
    ),
    Case(
        "a text that an index can't read", "HW_6117", "create index on {t} ((title::jsonb))", sqlstate="22P02",
    ),
]  # fmt: skip

OF_SOURCES = {  # see test_upload_by_source.py
    "the transaction writes to two sources": ("The user's mistakes", ["200", "HW_6133"]),
    "the row belongs to no shard of the config": ("The user's mistakes", ["200", "HW_6134"]),
    "the app does not send the column that tells [the shard](#several-databases)": ("Yours", ["503", "HW_6135"]),
}

UNTRACKED = Case(  # the config mends it
    "the app sends no previous values (`reject_changed`)", "HW_6149", "insert into {t} values ('1', 'ann', 'x')",
    entry=patch("", "1", title="y"), rule={"conflict": Conflict.REJECT_CHANGED},
    said="`conflict` in upload.tables is last_write_wins",
)  # fmt: skip

CASES = [*USER, *OPERATOR, *OF_POLICIES, *PASSING, *SLOW, *OF_VALUES, UNTRACKED]
NAMES = {case.cause: f"cause_{number}" for number, case in enumerate(CASES)}


@pytest.fixture(scope="module")
def causes(postgres: EmbeddedPostgres, maintenance: Connection) -> Iterator[Uploads]:
    """An endpoint that takes writes to the tables of all cases, before they break."""
    maintenance.execute("create database causes")
    db = SourceDb(postgres, "causes")
    info = db.connection.info
    login = SourceSettings(host=info.host, port=info.port, database=db.name, user=info.user, sslmode="disable")
    rules = {NAMES[case.cause]: TableRule("public", NAMES[case.cause], **case.rule) for case in CASES}
    settings = UploadSettings(login, ROLE, rules, statement_timeout=1, lock_timeout=1, wait_seconds=0)
    store = MemoryStore()
    store.commit()
    with ExitStack() as stack:
        stack.callback(maintenance.execute, f"drop role if exists {ROLE}")
        stack.callback(db.drop, maintenance)
        db.execute("".join(TABLE.format(t=name) for name in rules))
        prepare_uploads(settings)
        yield Uploads(db, settings, stack.enter_context(running(store, upload=settings)), make_token)


def cases(group: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", group, ids=lambda case: case.cause)


def begun(causes: Uploads, case: Case) -> tuple[Device, dict[str, Any]]:
    """Break the case's table. Returns a device, and what it wants to send."""
    causes.db.execute(filled(case.breaks, case) or "select 1")
    device = causes.device()
    return device, device.transaction({**case.entry, "type": NAMES[case.cause]})


def filled(text: str, case: Case) -> str:
    return text.replace("{t}", NAMES[case.cause]).replace("{role}", ROLE)


def rows_of_the_docs() -> Iterator[tuple[str, str, list[str], str]]:
    """Each cause in the docs: whose it is, what is answered, and what the user reads."""
    text = DOCS.read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Who can fix it\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    for part in section.split("\n**")[1:]:
        whose, _, answer = part.partition(".**")[0].partition(": ")
        statuses = re.findall(r"\d{3}", answer)
        for line in re.findall(r"^\| (.*) \|$", part, re.MULTILINE)[1:]:
            first, second, *shown = line.split(" | ")
            causes, code = ([first], second) if shown else (second.split("; "), first)
            yield from ((cause, whose, [*statuses, code.strip("`")], "".join(shown)) for cause in causes)


def shown_to_the_user(case: Case) -> str:
    """What the docs quote of the cause."""
    (shown,) = (re.findall("“(.*)”", shows) for cause, _, _, shows in rows_of_the_docs() if cause == case.cause)
    return "".join(shown)


def letters(causes: Uploads, client_id: str) -> list[tuple[Any, ...]]:
    query = "select d.code, d.op_id from headwater_upload.dead_letters d join headwater_upload.clients using (client)"
    return causes.rows(f"{query} where client_id = %s", client_id)


@cases([*USER, *OF_VALUES])
def test_user_errors_are_parked(causes: Uploads, case: Case) -> None:
    device, sent = begun(causes, case)
    (answer,) = device.answers(sent)
    assert answer["outcome"] == "parked"
    assert (answer["error"]["code"], answer["error"].get("sqlstate"), answer["error"]["op_id"]) == (
        case.code, case.sqlstate, 1,
    )  # fmt: skip
    if case in USER:
        raised = case.code == BY_APP
        assert answer["error"]["message"] == ("closed on Sundays" if raised else shown_to_the_user(case))
    assert letters(causes, device.client_id) == [(case.code, 1)]


@cases([*OPERATOR, *OF_POLICIES])
def test_operator_errors_wait_until_fixed(causes: Uploads, case: Case, caplog: pytest.LogCaptureFixture) -> None:
    device, sent = begun(causes, case)
    try:
        responses = [device.post(sent) for _ in range(3)]
    finally:
        waits = [str(each) for each in ledger.waiting(causes.settings)] if case.code != "HW_6120" else []
        causes.db.execute(filled(case.mends, case))
    for response in responses:
        assert (response.status_code, response.headers["retry-after"]) == (503, "30"), response.text
        assert response.json()["error"]["code"] == "HW_6131"
        assert case.code in response.json()["error"]["description"]
    assert [record.getMessage() for record in caplog.records if record.name.endswith("refusals")] == ["uploads wait"]
    if case.said:
        (finding,) = waits
        assert filled(case.said, case) in finding
        assert finding.startswith(f"[{case.code}]")
        assert "uploads of 1 device wait since" in finding
    assert letters(causes, device.client_id) == []
    assert device.answers(sent)[0]["outcome"] == "applied"
    assert ledger.waiting(causes.settings) == []


def test_config_errors_wait_for_other_config(causes: Uploads) -> None:
    device, sent = begun(causes, UNTRACKED)
    response = device.post(sent)
    assert (response.status_code, UNTRACKED.code in response.json()["error"]["description"]) == (503, True)
    (finding,) = ledger.waiting(causes.settings)
    assert UNTRACKED.said in str(finding)
    name = NAMES[UNTRACKED.cause]
    mended = replace(causes.settings, tables={name: TableRule("public", name)})
    store = MemoryStore()
    store.commit()
    with running(store, upload=mended) as endpoint:
        other = replace(device, uploads=replace(causes, settings=mended, endpoint=endpoint))
        assert other.answers(sent)[0]["outcome"] == "applied"
    assert (letters(causes, device.client_id), ledger.waiting(causes.settings)) == ([], [])


@cases(PASSING)
def test_passing_errors_are_never_parked(causes: Uploads, case: Case) -> None:
    device, sent = begun(causes, case)
    with psycopg.connect(causes.db.dsn) as other:
        if not case.breaks:
            other.execute(f"lock table {NAMES[case.cause]}")
        responses = [device.post(sent) for _ in range(2)]
    for response in responses:
        assert (response.status_code, response.headers["retry-after"]) == (503, "5"), response.text
        assert response.json()["error"]["code"] == case.code
    assert ledger.waiting(causes.settings) == []
    assert letters(causes, device.client_id) == []
    causes.db.execute(filled(case.mends, case) or "select 1")
    assert device.answers(sent)[0]["outcome"] == "applied"


def test_slow_transaction_is_parked_at_second_try(causes: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "SECONDS", 0.5)
    case, _ = SLOW
    device, sent = begun(causes, case)
    assert device.post(sent).status_code == 503
    assert letters(causes, device.client_id) == []
    behind = device.transaction({**case.entry, "type": NAMES[USER[0].cause]})
    parked, applied = device.answers(sent, behind)
    assert (parked["outcome"], parked["error"]["code"]) == ("parked", case.code)
    assert parked["error"]["message"] == shown_to_the_user(case)
    assert applied["outcome"] == "applied"


def test_slow_statement_is_parked_after_a_minute(causes: Uploads) -> None:
    _, case = SLOW
    device, sent = begun(causes, case)
    for _ in range(2):
        response = device.post(sent)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "HW_6103")
    assert letters(causes, device.client_id) == []
    causes.db.execute("update headwater_upload.waiting set since = since - interval '1 minute'")
    (parked,) = device.answers(sent)
    assert (parked["outcome"], parked["error"]["code"]) == ("parked", case.code)


def test_waiting_device_is_answered_without_source(
    causes: Uploads, start_endpoint: Callable[..., Endpoint], memory_store: MemoryStore
) -> None:
    settings = replace(causes.settings, wait_seconds=3600)
    device = replace(causes, endpoint=start_endpoint(memory_store, upload=settings)).device()
    table = NAMES[USER[0].cause]
    before = device.transaction(put(table, "before", title="x"))
    lacking = device.transaction(put(table, "early", nothing=1))
    first, *again = [device.post(before, lacking) for _ in range(3)]
    assert first.json()["transactions"] == [{"last_op_id": 1, "outcome": "applied"}]
    assert [(each.status_code, each.json()) for each in again] == [(503, {**first.json(), "transactions": []})] * 2
    record = "headwater_upload.waiting join headwater_upload.clients using (client) where client_id = %s"
    assert causes.rows(f"select tries from {record}", device.client_id) == [(1,)]
    device.next_op = 2
    device.applied(put(table, "early", title="x"))


def test_device_cannot_hide_or_inject_causes(causes: Uploads) -> None:
    table, evil = NAMES[USER[0].cause], 'x int; drop table "{t}"; --'
    for number in range(60):
        device = causes.device()
        name = evil if not number else f"{evil}{number}"
        assert device.post(device.transaction(put(table, "1", **{name: 1}))).status_code == 503
    other = causes.device()
    assert other.post(other.transaction(put(NAMES[USER[1].cause], "1", **{evil: 1}))).status_code == 503
    found = ledger.waiting(causes.settings)
    causes.db.execute("delete from headwater_upload.waiting")
    assert len([each for each in found if table in each.what]) == 5
    (remedy,) = (each.fix for each in found if table not in each.what)
    assert 'ADD COLUMN "x int; drop table ""{t}""; --" …' in remedy


def test_waiting_cause_has_no_values(causes: Uploads, caplog: pytest.LogCaptureFixture) -> None:
    unsafe = Case(USER[0].cause, "", TRIGGER % "execute 'select ' || new.title", "drop trigger t on {t}")
    device, _ = begun(causes, unsafe)
    response = device.post(device.transaction(put(NAMES[unsafe.cause], "unsafe", title="hush")))
    (finding,) = ledger.waiting(causes.settings)
    causes.db.execute(filled(unsafe.mends, unsafe))
    assert (response.status_code, "(42703)" in finding.what) == (503, True)
    lines = [line_of(record) for record in caplog.records]
    assert [text for text in (finding.what, response.text, *lines) if "hush" in text] == []
    device.applied(put(NAMES[unsafe.cause], "unsafe", title="hush"))


def test_statement_timeout_is_per_statement(causes: Uploads) -> None:
    slow = Case(PASSING[0].cause, "", TRIGGER % "perform pg_sleep(0.3)")
    device, _ = begun(causes, slow)
    device.applied(*(put(NAMES[slow.cause], f"slow {number}", title="x") for number in range(5)))


def test_long_wait_is_parked(causes: Uploads) -> None:
    device = causes.device()
    before = device.transaction(put(NAMES[USER[0].cause], "before", title="x"))
    lacking = device.transaction(put(NAMES[USER[0].cause], "late", nothing=1))
    behind = device.transaction(put(NAMES[USER[0].cause], "behind", title="x"))
    first = device.post(before, lacking, behind)
    assert (first.status_code, first.json()["transactions"]) == (503, [{"last_op_id": 1, "outcome": "applied"}])
    other = causes.device()
    other.applied(put(NAMES[USER[0].cause], "other", title="x"))
    causes.db.execute("update headwater_upload.waiting set since = since - interval '23 hours'")
    assert device.post(lacking, behind).status_code == 503
    causes.db.execute("update headwater_upload.waiting set since = since - interval '1 hour'")
    parked, applied = device.answers(lacking, behind)
    assert (parked["error"]["code"], parked["error"]["op_id"], applied["outcome"]) == ("HW_6118", 2, "applied")
    assert not [each for each in ledger.waiting(causes.settings) if each.code == "HW_6118"]


def test_docs_name_every_cause() -> None:
    told = {cause: (whose, answer) for cause, whose, answer, _ in rows_of_the_docs()}
    wanted = {
        **{case.cause: ("The user's mistakes", ["200", case.code]) for case in USER},
        **{case.cause: ("Yours", ["503", case.code]) for case in OPERATOR},
        **{case.cause: ("Nobody's", ["503", case.code]) for case in PASSING},
        **{case.cause: ("Too slow", ["503", "200", case.code]) for case in SLOW},
        UNTRACKED.cause: ("Yours", ["503", UNTRACKED.code]),
        **OF_SOURCES,
    }
    assert told == wanted
