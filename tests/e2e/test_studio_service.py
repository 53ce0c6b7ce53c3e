"""What operators do to the service in the studio: parked uploads, audits, a deploy that is stopped; and what they see
of work in progress."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from headwater.bulk.contract import BulkProgress, JobKind, Report, ReprocessJob, Stop
from headwater.source.upload.prepare import prepare_uploads
from headwater.source.upload.settings import TableRule, UploadSettings
from headwater.storage.contract.parts import BulkOutcome
from tests.e2e.test_studio import TOKENS, VIEW, connected, enter, part, write
from tests.support.changed_source import unheard
from tests.support.fix_browser import Browser
from tests.support.fix_devices import DeviceFactory
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import Service
from tests.support.fix_upload import NOTES as UPLOAD_NOTES
from tests.support.fix_upload import put
from tests.support.local_bulk import Waiting
from tests.support.sync_configs import OWN_NOTES, auto_streams
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

LETTERS = 60
PAGE = 50
API = {"workers": 1, "tokens": TOKENS}

COPY_OF_LETTERS = f"""
insert into headwater_upload.dead_letters
  (client, first_op, digest, last_op, code, sqlstate, message, payload, claims, state)
select client, 1000 + i, sha256(i::text::bytea), 1000 + i, code, sqlstate, message, payload, claims, state
from headwater_upload.dead_letters, generate_series(2, {LETTERS}) i
"""


@pytest.fixture
def parked(source_db: SourceDb, upload_role: str, deploy: Deploy, serve: Callable[..., Service]) -> Service:
    """A service with many parked uploads of ann, since a title may not be empty."""
    source_db.execute(UPLOAD_NOTES)
    deployment = deploy(OWN_NOTES).start()
    prepare_uploads(UploadSettings(deployment.settings, upload_role, {"notes": TableRule("public", "notes")}))
    service = serve(deployment, upload={"role": upload_role, "tables": {"notes": {}}}, api=API)
    entry = {"op_id": 1, "tx_id": 1, **put("notes", "n1", owner="ann", title="", body="<b>milk</b>")}
    httpx.post(
        f"{service.endpoint}/upload",
        json={"client_id": "phone", "transactions": [{"crud": [entry]}]},
        headers={"authorization": f"Token {service.token('ann')}"},
    ).raise_for_status()
    source_db.execute(COPY_OF_LETTERS)
    return service


def test_parked_uploads_are_seen_retried_and_discarded(browser: Browser, parked: Service, source_db: SourceDb) -> None:
    letters = part("letters", " tbody tr:not(.below)")
    enter(browser, parked, at="service")
    browser.wait_for(part("letters", " .pager span"), "1 to 50")
    browser.click(part("letters", " [data-testid=next]"))
    browser.wait_for(part("letters", " .pager span"), "51 to 60")
    assert browser.number(letters) == LETTERS - PAGE
    browser.click(part("letters", " [data-testid=previous]"))
    browser.wait_for(part("letters", " .pager span"), "1 to 50")

    browser.click(f"{letters}:nth-of-type(1) button.link")
    browser.wait_for(part("letter-inside"))
    assert '"body": "<b>milk</b>"' in browser.texts(part("letter-inside"))[0]
    browser.click(f"{letters}:nth-of-type(1) button.link")
    browser.wait_gone(part("letter-inside"))

    browser.click(f"{letters}:nth-of-type(1) input")
    browser.click(part("retry-letters"))
    browser.click(part("confirm-yes"))
    browser.wait_for(part("letter-outcomes", " .bad"), "1 refused")
    assert "notes_title_check" in browser.texts(part("letter-outcomes"))[0]

    source_db.execute("alter table notes drop constraint notes_title_check")
    browser.click(f"{letters}:nth-of-type(1) input")
    browser.click(part("retry-letters"))
    browser.click(part("confirm-yes"))
    browser.wait_for(part("letter-outcomes", " .good"), "1 applied")
    assert source_db.fetch("select id, body from notes") == [("n1", "<b>milk</b>")]
    browser.wait_gone(f"{letters} button.link", "1")

    browser.click(f"{letters}:nth-of-type(1) input")
    browser.click(f"{letters}:nth-of-type(2) input")
    browser.click(part("discard-letters"))
    browser.click(part("confirm-yes"))
    browser.wait_for(part("letter-outcomes", " .good"), "3 discarded")
    browser.wait_gone(f"{letters} button.link", "3")
    assert source_db.fetch("select count(*) from headwater_upload.dead_letters where payload is not null") == [
        (LETTERS - 3,)
    ]


def test_viewer_looks_into_parked_uploads_alone(browser: Browser, parked: Service) -> None:
    enter(browser, parked, VIEW, at="service")
    browser.wait_for(part("letters", " tbody tr"))
    browser.click(part("letters", " tbody button.link"))
    browser.wait_for(part("letter-inside"))
    assert browser.number(part("letters", " input")) == 0
    browser.wait_for(part("audits"))
    assert browser.number(part("start-audit")) == 0


class Watched(Waiting):
    """Deploys that wait where a tenth of the rows is done, until the test lets them go on."""

    def __init__(self) -> None:
        super().__init__("reprocess")

    def reprocess(self, job: ReprocessJob, progress: Report, stop: Stop = None) -> BulkOutcome:
        progress(BulkProgress(1_000, 10_000, 1, 10, JobKind.REPROCESS))
        return super().reprocess(job, progress, stop)


@pytest.fixture
def deployment(source_db: SourceDb, deploy: Deploy) -> Deployment:
    """Notes of u1 and u2, over a replicator whose deploys wait until the test lets them go on."""
    source_db.execute(
        "create table notes (id text primary key, owner text, body text);"
        " insert into notes values ('n1', 'u1', 'milk'), ('n2', 'u1', 'tea'), ('n3', 'u2', 'salt')"
    )
    return deploy(OWN_NOTES, bulk=Watched()).start()


@pytest.fixture
def service(deployment: Deployment, serve: Callable[..., Service]) -> Service:
    return serve(deployment, api=API)


@pytest.mark.long
def test_audit_is_started_read_and_repaired(browser: Browser, service: Service, deployment: Deployment) -> None:
    states, latest = (
        part("audits", " tbody tr:first-child td:nth-child(4)"),
        part("audits", " tbody tr:first-child button"),
    )
    enter(browser, service, at="service")
    browser.wait_for(part("audits", " .none"))
    browser.click(part("start-audit"))
    browser.wait_for(states, "all is equal")
    browser.click(latest)
    browser.wait_for(part("audit-result"))
    assert "3 rows of 1 table" in browser.texts(part("audit-result"))[0]
    browser.click(latest)
    with unheard(deployment):
        deployment.source.execute("update notes set body = 'changed' where id = 'n1'")
        deployment.caught_up()
    browser.click(part("start-audit"))
    browser.wait_for(states, "something differs")
    browser.click(latest)
    browser.wait_for(part("audit-result"))
    assert "public.notes: 1 row differ" in browser.texts(part("audit-result", " .facts"))[0]
    assert "body" in browser.texts(part("audit-result", " tbody"))[0]
    browser.click(part("repair"))
    browser.click(part("confirm-yes"))
    browser.wait_for(states, "differed, is repaired")
    browser.click(part("start-audit"))
    browser.wait_for(states, "all is equal")


def deployed(page: Browser, query: str) -> None:
    """Write a query into the editor and deploy it."""
    page.wait_for(part("findings", "[data-valid=true]"))
    write(page, 5, f"query: {query}")
    page.click(part("deploy", ":enabled"))
    page.wait_for(part("difference"))
    page.click(part("deploy-now"))


def test_deploy_is_stopped_while_the_replicator_is_busy_with_it(
    browser: Browser, service: Service, deployment: Deployment, device_factory: DeviceFactory
) -> None:
    bulk = deployment.bulk
    assert isinstance(bulk, Waiting)
    device = connected(service, device_factory, "u1")
    ids = "select id from notes order by id"
    enter(browser, service, name="Ada")
    deployed(browser, "SELECT * FROM notes")
    browser.wait_for(part("processing"))
    assert bulk.begun.wait(60), "the replicator is busy with it"
    browser.wait_for(part("processing", " progress"))
    device.wait_for(ids, [{"id": "n1"}, {"id": "n2"}])

    browser.click(part("cancel-deploy"))
    browser.click(part("confirm-yes"))
    browser.wait_for(part("failed-version"))
    assert "Ada" in browser.texts(part("failed-version"))[0]
    bulk.go.set()  # what it did meanwhile must not be served after all
    deployment.source.execute("insert into notes values ('n4', 'u1', 'bread'), ('n5', 'u2', 'oil')")
    device.wait_for(ids, [{"id": "n1"}, {"id": "n2"}, {"id": "n4"}])
    with deployment.store() as store:
        states = [(each.state.value, each.author) for each in store.versions()]
    assert states == [("active", ""), ("failed", "Ada")]

    deployed(browser, "SELECT * FROM notes WHERE id IN ('n1', 'n5')")
    device.wait_for(ids, [{"id": "n1"}, {"id": "n5"}])
    browser.wait_gone(part("failed-version"))


def test_work_in_progress_is_seen(browser: Browser, service: Service, deployment: Deployment) -> None:
    bulk = deployment.bulk
    assert isinstance(bulk, Waiting)
    enter(browser, service)
    deployed(browser, "SELECT * FROM notes")
    assert bulk.begun.wait(60)
    browser.click("nav a[href='#/service']")
    browser.wait_for(part("source", " progress"))
    assert "1,000 of about 10,000 rows" in browser.texts(part("source"))[0]
    bulk.go.set()
    browser.wait_gone(part("source", " progress"))


def test_live_figures_are_plotted(browser: Browser, service: Service, source_db: SourceDb) -> None:
    now = part("live", " figure:nth-child(2) b")
    enter(browser, service, VIEW, at="service")
    browser.wait_for(now, "0")

    def written() -> bool:
        source_db.execute("update notes set body = body || '!'")
        return browser.texts(now) not in (["0"], ["not known"])

    wait_until(written, "the changes to be seen", 60)
    browser.wait_for(part("day", " .none"))


def test_table_that_reaches_nobody_is_named_on_top(browser: Browser, service: Service, source_db: SourceDb) -> None:
    enter(browser, service, VIEW, at="service")
    browser.wait_for(part("tables", " td:last-child"), "followed")
    assert browser.number(part("source", " .finding")) == 0
    source_db.execute("drop publication headwater; create publication headwater")
    browser.wait_for(part("source", " .finding code"), "HW_2030")
    assert "ALTER PUBLICATION" in browser.texts(part("source", " pre"))[0]
    browser.wait_for(part("tables", " .beside"), "1 table, 1 with a problem")


def test_hover_says_type_and_doc(
    browser: Browser, source_db: SourceDb, deploy: Deploy, serve: Callable[..., Service]
) -> None:
    source_db.execute("create table notes (id text primary key, owner text, n bigint)")
    service = serve(deploy(auto_streams(mine="SELECT * FROM notes WHERE owner = auth.user_id()")).start(), api=API)
    enter(browser, service, VIEW)
    browser.wait_for(part("findings", "[data-valid=true]"))

    def meaning(word: str, title: str) -> str:
        browser.point_at(".cm-content", word)
        browser.wait_for(part("meaning", " strong"), title)
        return browser.texts(part("meaning", " p"))[0]

    assert meaning("notes", "notes: table of default") == "id text, owner text, n bigint"
    assert meaning("owner", "owner text") == "text in rules"
    assert "user" in meaning("user_id", "auth.user_id()")
    assert "every" in meaning("auto_subscribe", "auto_subscribe")


@pytest.mark.long
def test_last_day_is_plotted(browser: Browser, service: Service) -> None:
    """Figures are taken at the end of each minute."""
    headers = {"authorization": f"Token {VIEW}"}

    def times() -> list[int]:
        answer = httpx.get(f"{service.endpoint}/api/headwater/v1/series", headers=headers)
        found: list[int] = answer.json()["data"]["times"]
        return found

    wait_until(lambda: len(times()) >= 2, "two minutes to be over", 200)
    enter(browser, service, VIEW, at="service")
    browser.wait_for(part("day", " canvas"))
    assert [each.partition(" ")[0] for each in browser.texts(part("day", " figcaption"))][:1] == ["Commits"]
    browser.wait_for(part("day", " figure:nth-child(3) b"), "0")
