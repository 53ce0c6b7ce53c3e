"""Versions of the sync config as their deployer meets them: what is said, and when it is a failure."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from headwater.replication.versions import FILE_KEY, deploy_file, was_taken, why_served
from headwater.storage.contract.versions import Origin, VersionState
from tests.support.command import Outcome, Run, command, environment
from tests.support.ruled_configs import PROJECTION_EDITED, REQUEST_EDITED, SERVED, STREAM_ADDED, WRONG
from tests.support.ruled_store import RuledStore
from tests.support.waiting import wait_until

NOT_ASKED = "note: its tables are not compared with the source: [HW_2001]"


def error_of(outcome: Outcome, code: int = 1) -> str:
    """The message of a run that failed."""
    assert outcome.code == code, outcome
    assert "Traceback" not in outcome.err + outcome.out
    return outcome.err


class Running:
    """`headwater rules …`, at work."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            command("rules", *arguments), cwd=folder, env=environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def said(self) -> str:
        """The next line about what it waits for."""
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        return self._process.stderr.readline() if line.startswith(NOT_ASKED) else line

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def outcome(self) -> Outcome:
        out, err = self._process.communicate(timeout=60)
        return Outcome(self._process.returncode, out, err)


def is_processing(ruled: RuledStore) -> bool:
    return any(version.state is VersionState.PROCESSING for version in ruled.store.versions())


def states(ruled: RuledStore) -> list[str]:
    return [version.state.value for version in ruled.store.versions()]


@pytest.fixture
def running(ruled: RuledStore, tmp_path: Path) -> Running:
    """A second version, which is being deployed."""
    ruled.serve(SERVED)
    (tmp_path / "new.yaml").write_text(STREAM_ADDED)
    return Running(tmp_path, "deploy", "new.yaml")


def test_deploy_waits(ruled: RuledStore, running: Running) -> None:
    assert running.said() == "waiting: its new rows are being prepared\n"
    assert states(ruled) == ["active", "processing"]
    ruled.process()
    outcome = running.outcome()
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("version 2 is deployed\nversion 2 is served now (")
    assert ruled.store.versions()[1].origin is Origin.COMMAND


def test_failed_deploy(ruled: RuledStore, running: Running) -> None:
    running.said()
    ruled.fail("the table public.todos is gone")
    error = error_of(running.outcome())
    assert "[HW_8103] version 2 failed: the table public.todos is gone; devices are served as before" in error


def test_replaced_deploy(ruled: RuledStore, running: Running) -> None:
    running.said()
    ruled.store.deploy(REQUEST_EDITED, Origin.COMMAND)
    assert "version 2 was stopped: another version was deployed" in error_of(running.outcome())


def test_deploy_without_replicator(ruled: RuledStore, tmp_path: Path) -> None:
    ruled.serve(SERVED)
    ruled.store.release(ruled.lease)
    (tmp_path / "new.yaml").write_text(STREAM_ADDED)
    running = Running(tmp_path, "deploy", "new.yaml")
    assert "no replicator is running" in running.said()
    running.interrupt()
    error = error_of(running.outcome(), 130)
    assert error == "version 2 stays deployed and continues without this command; see `headwater rules versions`\n"
    assert is_processing(ruled)


def test_deploy_no_wait(ruled: RuledStore, tmp_path: Path, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    (tmp_path / "new.yaml").write_text(STREAM_ADDED)
    outcome = headwater_here("rules", "deploy", "new.yaml", "--no-wait")
    assert (outcome.code, outcome.out) == (0, "version 2 is deployed\n")
    assert outcome.err.startswith(NOT_ASKED), "the source of these tests does not answer"
    assert states(ruled) == ["active", "processing"]
    (tmp_path / "same.yaml").write_text(STREAM_ADDED)
    assert headwater_here("rules", "deploy", "same.yaml", "--no-wait").out == "version 2 is deployed\n"
    ruled.process()
    outcome = headwater_here("rules", "deploy", "same.yaml")
    assert (outcome.code, outcome.out) == (0, "version 2 has this text and is already served\n")


def test_deploy_of_wrong_rules(ruled: RuledStore, tmp_path: Path, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    (tmp_path / "wrong.yaml").write_text(WRONG)
    error = error_of(headwater_here("rules", "deploy", "wrong.yaml"))
    assert "\nwrong.yaml:\nerror [" in error
    assert error.count("error [") == 2
    (tmp_path / "wrong.yaml").write_text("streams: [")
    assert "error [HW_R001]" in error_of(headwater_here("rules", "deploy", "wrong.yaml"))
    assert states(ruled) == ["active"]


def test_deploy_warnings(ruled: RuledStore, tmp_path: Path, headwater_here: Run) -> None:
    (tmp_path / "open.yaml").write_text(SERVED.replace("owner = auth.user_id()", "owner = connection.parameter('who')"))
    outcome = headwater_here("rules", "deploy", "open.yaml", "--no-wait")
    assert outcome.code == 0
    assert "warning [HW_R201]" in outcome.err
    (tmp_path / "open.yaml").write_text(SERVED.replace("owner = auth.user_id()", "owner = auth.user_id() OR true"))
    assert "warning [HW_R210]" in headwater_here("rules", "deploy", "open.yaml", "--no-wait").err


def test_missing_file(ruled: RuledStore, headwater_here: Run) -> None:
    assert "No such file or directory; check the path (no.yaml)" in error_of(
        headwater_here("rules", "deploy", "no.yaml")
    )


def test_list_versions(ruled: RuledStore, headwater_here: Run) -> None:
    assert headwater_here("rules", "versions").out.startswith("no version yet")
    ruled.serve(SERVED)
    ruled.store.deploy(STREAM_ADDED, Origin.COMMAND)
    ruled.fail("no room")
    outcome = headwater_here("rules", "versions")
    assert outcome.code == 0
    newest, note, oldest = outcome.out.splitlines()
    assert newest.split()[:4] == ["2", "failed", "by", "command"]
    assert note.strip() == "no room"
    assert oldest.split()[:4] == ["1", "active", "by", "file"]
    listed = json.loads(headwater_here("rules", "versions", "--json").out)
    assert [(each["id"], each["state"], each["note"]) for each in listed] == [
        (2, "failed", "no room"),
        (1, "active", None),
    ]
    assert listed[1]["created"] <= listed[1]["activated"]


def test_show_version(ruled: RuledStore, headwater_here: Run) -> None:
    assert "no version is served yet" in error_of(headwater_here("rules", "show"))
    ruled.serve(SERVED)
    ruled.serve(STREAM_ADDED)
    assert headwater_here("rules", "show").out == STREAM_ADDED
    assert headwater_here("rules", "show", "1").out == SERVED
    error = error_of(headwater_here("rules", "show", "7"))
    assert "[HW_8102] there is no version 7 (latest versions: 1, 2); see `headwater rules versions`" in error


def test_rollback(ruled: RuledStore, tmp_path: Path, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    ruled.store.deploy(STREAM_ADDED, Origin.COMMAND)
    ruled.fail("no room")
    assert "no other version was served before" in error_of(headwater_here("rules", "rollback"))
    ruled.serve(PROJECTION_EDITED)
    running = Running(tmp_path, "rollback")
    wait_until(lambda: is_processing(ruled), "the version to be processed")
    ruled.process()
    outcome = running.outcome()
    assert outcome.code == 0
    assert outcome.out.startswith("going back to the text of version 1\nversion 4 is deployed\nversion 4 is served now")
    assert ruled.store.versions()[-1].yaml == SERVED
    outcome = headwater_here("rules", "rollback", "3", "--no-wait")
    assert outcome.out == "going back to the text of version 3\nversion 5 is deployed\n"
    assert "there is no version 9" in error_of(headwater_here("rules", "rollback", "9"))


def test_rollback_stays(ruled: RuledStore, headwater_here: Run, tmp_path: Path) -> None:
    def served() -> str:
        if any(each.state is VersionState.PROCESSING for each in ruled.store.versions()):
            ruled.process()
        return next(each.yaml for each in ruled.store.versions() if each.state is VersionState.ACTIVE)

    def served_after_start(file: str) -> str:
        deploy_file(ruled.store, ruled.lease, file)
        return served()

    def command(*arguments: str) -> str:
        assert headwater_here("rules", *arguments, "--no-wait").code == 0
        return served()

    assert why_served(ruled.store) == ""
    assert served_after_start(SERVED) == SERVED
    (tmp_path / "new.yaml").write_text(STREAM_ADDED)
    assert command("deploy", "new.yaml") == STREAM_ADDED
    assert served_after_start(SERVED) == STREAM_ADDED, "the file has not changed"
    assert served_after_start(STREAM_ADDED) == STREAM_ADDED, "the file follows the command"
    assert why_served(ruled.store) == "version 2 of the sync config, the text of its file"
    assert command("rollback") == SERVED
    for _ in range(2):
        assert served_after_start(STREAM_ADDED) == SERVED
    assert why_served(ruled.store).startswith("version 3 of the sync config, which a command deployed: it stays until")
    assert served_after_start(PROJECTION_EDITED) == PROJECTION_EDITED
    assert was_taken(ruled.store, PROJECTION_EDITED)
    assert not was_taken(ruled.store, STREAM_ADDED), "a start would deploy it, so it compares it with the source"
    assert served_after_start(STREAM_ADDED) == STREAM_ADDED, "the file changed back to a text that was served before"
    assert command("rollback") == PROJECTION_EDITED
    ruled.store.set_meta(ruled.lease, FILE_KEY, "")  # a store that was imported does not know the file
    assert served_after_start(STREAM_ADDED) == PROJECTION_EDITED
    assert served_after_start(REQUEST_EDITED) == REQUEST_EDITED
