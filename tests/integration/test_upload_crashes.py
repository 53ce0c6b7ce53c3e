"""The endpoint dies at each step of an upload: sent again, everything is in the source, and nothing twice."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.fix_api import make_token
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_upload import Uploads, patch, put
from tests.support.plain_http import plain_http
from tests.support.processes import Running

# A row for each time that a write was done, so that one done twice shows
COUNTED = """
create table written (id text);
grant insert on written to public;
create function count_it() returns trigger language plpgsql as
  $$begin insert into written values (new.id); return new; end$$;
create trigger t after insert or update on notes for each row execute function count_it();
"""


@dataclass
class Dying:
    """An endpoint in a process of its own, over the same source as `survivor`."""

    survivor: Uploads
    launch: Launch
    config: dict[str, Any]

    @property
    def db(self) -> SourceDb:
        return self.survivor.db

    def dies_while_taking(self, transactions: list[dict[str, Any]], failpoint: str) -> None:
        """Have it die at this failpoint, with no answer given."""
        running: Running = self.launch("api", self.config, failpoint=failpoint)
        running.wait_for("Application startup complete")
        body = {"client_id": "device", "transactions": transactions}
        said = {"authorization": f"Token {make_token('ann')}"}
        with plain_http(self.config["port"], said) as http, pytest.raises(httpx.TransportError):
            http.post("/upload", json=body)
        running.died_at(failpoint.partition(":")[0])

    def post(self, transactions: list[dict[str, Any]]) -> list[str]:
        """Send it to the one that lives; what became of each."""
        response = self.survivor.post("ann", {"client_id": "device", "transactions": transactions})
        assert response.status_code == 200, response.text
        return [each["outcome"] for each in response.json()["transactions"]]


@pytest.fixture
def dying(uploads: Uploads, launch: Launch, tmp_path: Path) -> Dying:
    uploads.db.execute(COUNTED)
    return Dying(uploads, launch, uploads.config(tmp_path))


def transactions() -> list[dict[str, Any]]:
    """Five, of which the third can't be applied."""
    entries = [
        [put("notes", "1", owner="ann", title="a"), patch("notes", "1", n=1)],
        [put("notes", "2", owner="ann", title="b")],
        [put("notes", "3", owner="ann", title="c"), put("notes", "4", owner="ann", title="")],
        [put("notes", "5", owner="ann", title="e")],
        [patch("notes", "1", n=2)],
    ]
    op, made = 0, []
    for group in entries:
        crud = []
        for entry in group:
            op += 1
            crud.append({"op_id": op, **entry})
        made.append({"crud": crud})
    return made


UPLOAD_POINTS = (
    "upload.after_note", "upload.after_write:2", "upload.before_commit:2", "upload.after_commit",
    "upload.before_park", "upload.before_park_commit", "upload.after_park_commit",
)  # fmt: skip


@pytest.mark.parametrize("failpoint", UPLOAD_POINTS)
def test_kill_at_any_step(dying: Dying, failpoint: str) -> None:
    sent = transactions()
    dying.dies_while_taking(sent, failpoint)
    outcomes = dying.post(sent)
    assert outcomes[2] == "parked"
    assert {*outcomes[:2], *outcomes[3:]} <= {"applied", "already_applied"}
    assert dying.db.fetch("select id, n from notes order by id") == [("1", 2), ("2", None), ("5", None)]
    written = dying.db.fetch("select id, count(*) from written group by id order by id")
    assert written == [("1", 3), ("2", 1), ("5", 1)]
    letters = dying.db.fetch("select first_op, last_op, json_array_length(payload) from headwater_upload.dead_letters")
    assert letters == [(4, 5, 2)]
    assert dying.post(sent) == ["already_applied", "already_applied", "parked", "already_applied", "already_applied"]


def test_kill_during_retry_keeps_letter(dying: Dying, launch_module: Launch, tmp_path: Path) -> None:
    dying.post(transactions())
    dying.db.execute("alter table notes drop constraint notes_title_check")
    config = tmp_path / "retry.json"
    config.write_text(json.dumps(dying.config))
    command = ("headwater", "upload", "retry", "--all", "--config", str(config))
    launch_module(*command, failpoint="upload.after_write:2").died_at("upload.after_write")
    assert dying.db.fetch("select state from headwater_upload.dead_letters") == [("parked",)]
    assert dying.db.fetch("select id from notes where id in ('3', '4')") == []
    assert launch_module(*command).wait() == 0
    assert dying.db.fetch("select state, payload from headwater_upload.dead_letters") == [("applied", None)]
    again = dying.db.fetch("select id, count(*) from written where id in ('3', '4') group by id order by id")
    assert again == [("3", 1), ("4", 1)]
    assert dying.post(transactions()) == ["already_applied"] * 5
