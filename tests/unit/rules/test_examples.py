"""What each example config gives to whom, and that withdrawing each right takes exactly its rows away."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater_rules.testing import Client, RulesTest

EXAMPLES = Path(__file__).parents[3] / "sync_rules" / "examples"
Ids = dict[str, list[object]]


def rehearse(name: str) -> RulesTest:
    return RulesTest.of(EXAMPLES / f"{name}.yaml")


def assert_holds(client: Client, tables: Ids) -> None:
    """The client holds these ids by table, and nothing else."""
    __tracebackhide__ = True
    for table, ids in tables.items():
        client.assert_synced(table, ids)
    assert set(client.tables()) == {table for table, ids in tables.items() if ids}


def ids(client: Client, stream: str) -> set[tuple[object, ...]]:
    """The parameters of the buckets that a stream leads to."""
    return {bucket.parameters for bucket in client.buckets(stream)}


def test_every_example_has_a_test() -> None:
    told = Path(__file__).read_text()
    assert [path.stem for path in EXAMPLES.glob("*.yaml") if f'rehearse("{path.stem}")' not in told] == []


def test_demo() -> None:
    rules = rehearse("demo")
    rules.insert("users", {"id": "ann", "name": "Ann"}, {"id": "bob", "name": "Bob"})
    rules.insert("lists", {"id": 1, "owner_id": "ann"}, {"id": 2, "owner_id": "bob"})
    rules.insert("list_members", {"id": 11, "list_id": 1, "user_id": "ann"}, {"id": 12, "list_id": 2, "user_id": "bob"})
    rules.insert("todos", {"id": 21, "list_id": 1}, {"id": 22, "list_id": 2})
    rules.insert("activity", user_id="ann", what="signed in")
    rules.insert("announcements", text="hello")
    ann, bob = rules.client("ann"), rules.client("bob")
    assert len(ann.table("activity")) == 1
    assert len(bob.table("announcements")) == 1
    bob.assert_not_synced("activity")
    rules.delete("announcements", text="hello")
    assert_holds(bob, {"users": ["bob"], "lists": [2], "list_members": [12], "todos": [22]})
    rules.insert("list_members", id=13, list_id=1, user_id="bob")
    assert_holds(bob, {"users": ["bob"], "lists": [1, 2], "list_members": [11, 12, 13], "todos": [21, 22]})
    assert ids(bob, "lists") == {("bob",), (1,), (2,)}
    rules.delete("list_members", id=13)
    assert_holds(bob, {"users": ["bob"], "lists": [2], "list_members": [12], "todos": [22]})


def test_todo_lists() -> None:
    rules = rehearse("todo_lists")
    rules.insert("lists", {"id": 1, "owner_id": "ann"}, {"id": 2, "owner_id": "bob"})
    rules.insert("list_members", id=11, list_id=2, user_id="ann")
    rules.insert("todos", {"id": 21, "list_id": 1}, {"id": 22, "list_id": 2})
    rules.insert("attachments", id=31, list_id=2, file_name="a.pdf", content=b"%PDF")
    ann = rules.client("ann", subscriptions={"attachments": [{"list_id": 1}, {"list_id": 2}]})
    assert_holds(ann, {"lists": [1, 2], "list_members": [11], "todos": [21, 22], "attachments": [31]})
    assert ann.table("attachments") == [{"id": "31", "list_id": 2, "file_name": "a.pdf", "size": 4}]
    assert {bucket.priority for bucket in ann.buckets("lists")} == {1}
    rules.delete("list_members", id=11)
    assert_holds(ann, {"lists": [1], "todos": [21]})
    rules.update("lists", {"id": 1}, owner_id="bob")
    assert_holds(ann, {})
    assert_holds(rules.client("bob"), {"lists": [1, 2], "todos": [21, 22]})


def test_personal_notes() -> None:
    rules = rehearse("personal_notes")
    rules.insert(
        "notes",
        {"id": 1, "owner_id": "ann", "archived": False, "title": "a", "body": "long"},
        {"id": 2, "owner_id": "bob", "archived": False},
    )
    ann, archive = rules.client("ann"), rules.client("ann", subscriptions=["my_archive"])
    assert_holds(ann, {"notes": [1]})
    rules.update("notes", {"id": 1}, archived=True)
    assert_holds(ann, {})
    archive.assert_synced("notes", [{"id": 1, "title": "a"}])
    assert "body" not in archive.table("notes")[0]
    rules.update("notes", {"id": 1}, archived=None)
    assert_holds(ann, {"notes": [1]})


def test_team_projects() -> None:
    rules = rehearse("team_projects")
    rules.insert(
        "projects",
        {"id": 1, "org_id": "o1", "status": "open"},
        {"id": 2, "org_id": "o1", "status": "closed"},
        {"id": 3, "org_id": "o2", "status": "open"},
    )
    rules.insert("tasks", id=11, project_id=3, state="new", watchers=["ann", "bob"])
    rules.insert("audit_log", id=21, org_id="o1")
    ann = rules.client({"sub": "ann", "org_id": "o1"}, subscriptions=["audit_log"])
    assert_holds(ann, {"projects": [1], "tasks": [11]})
    ann.assert_synced("tasks", [{"id": 11, "state_label": "NEW"}])
    admin = rules.client({"sub": "eve", "org_id": "o1", "role": "admin"}, subscriptions=["audit_log"])
    assert_holds(admin, {"projects": [1], "audit_log": [21]})
    rules.insert("auditors", id=31, user_id="ann")
    ann.assert_synced("audit_log", [21])
    rules.delete("auditors", user_id="ann")
    rules.update("tasks", {"id": 11}, watchers=["bob"])
    rules.update("projects", {"id": 1}, status="closed")
    assert_holds(ann, {})


@pytest.fixture
def chat() -> RulesTest:
    rules = rehearse("chat")
    rules.insert("channels", {"id": 1, "name": "all"}, {"id": 2, "name": "board"})
    rules.insert(
        "channel_members",
        {"id": 11, "channel_id": 1, "user_id": "ann"},
        {"id": 12, "channel_id": 1, "user_id": "bob"},
        {"id": 13, "channel_id": 2, "user_id": "bob"},
    )
    rules.insert(
        "messages",
        {"id": 21, "channel_id": 1, "recent": True},
        {"id": 22, "channel_id": 1, "recent": False},
        {"id": 23, "channel_id": 2, "recent": True},
        {"id": 24, "channel_id": 2, "recent": False},
    )
    rules.insert(
        "read_markers", {"id": 31, "channel_id": 1, "user_id": "ann"}, {"id": 32, "channel_id": 1, "user_id": "bob"}
    )
    rules.insert("drafts", id=41, author_id="ann")
    return rules


def test_chat(chat: RulesTest) -> None:
    ann = chat.client("ann")
    everyday: Ids = {"channels": [1], "channel_members": [11, 12], "read_markers": [31], "drafts": [41]}
    assert_holds(ann, everyday | {"messages": [21]})
    assert [bucket.priority for bucket in ann.buckets("recent_messages")] == [2]
    history = chat.client("ann", subscriptions={"channel_history": [{"channel_id": 1}, {"channel_id": 2}]})
    assert_holds(history, everyday | {"messages": [21, 22]})
    chat.update("messages", {"id": 21}, recent=False)
    assert_holds(ann, everyday)
    assert_holds(history, everyday | {"messages": [21, 22]})
    chat.delete("channel_members", id=11)
    assert_holds(history, {"read_markers": [31], "drafts": [41]})
    chat.insert("channel_members", id=14, channel_id=2, user_id="ann")
    assert_holds(
        history,
        {"channels": [2], "channel_members": [13, 14], "messages": [23, 24], "read_markers": [31], "drafts": [41]},
    )


def test_organisations() -> None:
    rules = rehearse("organisations")
    rules.insert("organisations", {"id": 1, "name": "A"}, {"id": 2, "name": "B"})
    rules.insert(
        "memberships",
        {"id": 11, "org_id": 1, "user_id": "ann", "role": "member", "active": True, "email": "ann@a"},
        {"id": 12, "org_id": 1, "user_id": "bob", "role": "admin", "active": True, "email": "bob@a"},
        {"id": 13, "org_id": 2, "user_id": "eve", "role": "owner", "active": True, "email": "eve@b"},
    )
    rules.insert(
        "projects",
        {"id": 21, "org_id": 1, "confidential": False},
        {"id": 22, "org_id": 1, "confidential": True},
        {"id": 23, "org_id": 2, "confidential": False},
    )
    rules.insert("invoices", {"id": 31, "org_id": 1}, {"id": 32, "org_id": 2})
    ann, bob = rules.client("ann"), rules.client("bob")
    as_member: Ids = {"organisations": [1], "memberships": [11, 12], "projects": [21]}
    as_admin = as_member | {"member_contacts": [11, 12], "projects": [21, 22], "invoices": [31]}
    assert_holds(ann, as_member)
    assert_holds(bob, as_admin)
    assert "email" not in ann.table("memberships")[0]
    rules.insert("project_members", id=41, project_id=22, user_id="ann")
    assert_holds(ann, as_member | {"projects": [21, 22]})
    rules.delete("project_members", id=41)
    rules.insert("project_members", id=42, project_id=23, user_id="ann")  # of an organisation that is not hers
    assert_holds(ann, as_member)
    rules.update("memberships", {"id": 11}, role="owner")
    assert_holds(ann, as_admin)
    rules.update("memberships", {"id": 12}, role="member")
    assert_holds(bob, as_member)
    rules.update("memberships", {"id": 11}, active=False)
    assert_holds(ann, {})


def test_organisations_support_is_for_staff_on_duty() -> None:
    rules = rehearse("organisations")
    rules.insert("support_tickets", {"id": 1}, {"id": 2})
    rules.insert("staff", id=11, user_id="sam", on_duty=True)
    sam = rules.client("sam", subscriptions=["support"])
    assert_holds(sam, {"support_tickets": [1, 2]})
    assert_holds(rules.client("ann", subscriptions=["support"]), {})
    rules.update("staff", {"id": 11}, on_duty=False)
    assert_holds(sam, {})


def test_courses() -> None:
    rules = rehearse("courses")
    rules.insert(
        "courses", {"id": 1, "teacher_id": "tom"}, {"id": 2, "teacher_id": "tom"}, {"id": 3, "teacher_id": "tia"}
    )
    rules.insert(
        "students",
        {"id": "ann", "name": "Ann", "hidden": False, "address": "x"},
        {"id": "bob", "name": "Bob", "hidden": False},
        {"id": "eve", "name": "Eve", "hidden": True},
    )
    rules.insert(
        "enrolments",
        {"id": 11, "course_id": 1, "student_id": "ann"},
        {"id": 12, "course_id": 1, "student_id": "bob"},
        {"id": 13, "course_id": 2, "student_id": "bob"},
        {"id": 14, "course_id": 1, "student_id": "eve"},
    )
    rules.insert(
        "materials",
        {"id": 21, "course_id": 1, "published": True},
        {"id": 22, "course_id": 1, "published": False},
        {"id": 23, "course_id": 3, "published": False},
    )
    rules.insert(
        "grades",
        {"id": 31, "course_id": 1, "student_id": "ann"},
        {"id": 32, "course_id": 1, "student_id": "bob"},
        {"id": 33, "course_id": 2, "student_id": "ann"},
    )
    ann, bob, tom = rules.client("ann"), rules.client("bob"), rules.client("tom")
    of_course_1: Ids = {"courses": [1], "students": ["ann", "bob"], "materials": [21]}
    assert_holds(ann, of_course_1 | {"enrolments": [11], "grades": [31]})
    assert ann.table("students")[0] == {"id": "ann", "name": "Ann"}
    assert_holds(bob, of_course_1 | {"courses": [1, 2], "enrolments": [12, 13], "grades": [32]})
    assert_holds(tom, {"materials": [21, 22]})
    rules.insert("enrolments", id=15, course_id=2, student_id="ann")
    assert_holds(ann, of_course_1 | {"courses": [1, 2], "enrolments": [11, 15], "grades": [31, 33]})
    rules.delete("enrolments", id=11)
    assert_holds(ann, {"courses": [2], "students": ["ann", "bob"], "enrolments": [15], "grades": [33]})
    rules.update("courses", {"id": 1}, teacher_id="tia")
    assert_holds(tom, {})
    assert_holds(rules.client("tia"), {"materials": [21, 22, 23]})


def test_shared_documents() -> None:
    rules = rehearse("shared_documents")
    rules.insert(
        "documents",
        {"id": 1, "owner_id": "ann", "shared_with": [], "shared_groups": [], "body": "one"},
        {"id": 2, "owner_id": "bob", "shared_with": ["ann", "eve"], "shared_groups": [], "body": "two"},
        {"id": 3, "owner_id": "bob", "shared_with": None, "shared_groups": ["staff"], "body": "three"},
    )
    rules.insert("comments", {"id": 11, "document_id": 2}, {"id": 12, "document_id": 3})
    texts = [{"document_id": number} for number in (1, 2, 3)]
    ann = rules.client({"sub": "ann", "groups": ["staff", "press"]}, subscriptions={"document_text": texts})
    eve = rules.client({"sub": "eve"}, subscriptions={"document_text": texts})
    assert_holds(ann, {"documents": [1, 2, 3], "document_texts": [1, 2, 3], "comments": [11]})
    assert_holds(eve, {"documents": [2], "document_texts": [2], "comments": [11]})
    assert "body" not in ann.table("documents")[0]
    rules.update("documents", {"id": 2}, shared_with=["eve"])
    assert_holds(ann, {"documents": [1, 3], "document_texts": [1, 3]})
    rules.update("documents", {"id": 3}, shared_groups=["press"])
    assert_holds(ann, {"documents": [1, 3], "document_texts": [1, 3]})
    rules.update("documents", {"id": 3}, shared_groups=[])
    rules.update("documents", {"id": 1}, owner_id="eve")
    assert_holds(ann, {})


def test_field_service() -> None:
    rules = rehearse("field_service")
    rules.insert("sites", {"id": 1, "name": "mill", "safe_code": "1234"}, {"id": 2, "name": "dam"}, {"id": 3})
    rules.insert(
        "assignments",
        {"id": 11, "site_id": 1, "technician_id": "ann"},
        {"id": 12, "site_id": 2, "technician_id": "ann"},
    )
    rules.insert("machines", {"id": 21, "site_id": 1}, {"id": 22, "site_id": 2}, {"id": 23, "site_id": 3})
    rules.insert(
        "visits",
        {"id": 31, "site_id": 1, "technician_id": "ann", "planned_at": "2026-01-30T08:00:00Z"},
        {"id": 32, "site_id": 3, "technician_id": "ann", "planned_at": "2026-02-01T08:00:00Z"},
        {"id": 33, "site_id": 3, "technician_id": "bob", "planned_at": "2026-02-01T08:00:00Z"},
    )
    rules.insert("photos", id=41, machine_id=21, site_id=1, thumbnail=b"\xff")
    assert_holds(rules.client("ann"), {"sites": [1, 2]})
    assert "safe_code" not in rules.client("ann").table("sites")[0]
    site = rules.client("ann", subscriptions={"site": [{"site_id": 1}, {"site_id": 3}]})
    assert_holds(site, {"sites": [1, 2], "machines": [21], "visits": [31]})
    trip = rules.client("ann", subscriptions={"trip": {"site_ids": [1, 2, 3]}})
    assert_holds(trip, {"sites": [1, 2], "machines": [21, 22]})
    february = rules.client("ann", subscriptions={"month": {"month": "2026-02"}})
    assert_holds(february, {"sites": [1, 2], "visits": [32]})
    tablet = rules.client("ann", parameters={"photos": "all"})
    assert_holds(tablet, {"sites": [1, 2], "photos": [41]})
    assert tablet.table("photos")[0]["thumbnail"] == "/w=="
    rules.delete("assignments", id=11)
    assert_holds(site, {"sites": [2]})
    assert_holds(trip, {"sites": [2], "machines": [22]})
    assert_holds(tablet, {"sites": [2]})
    assert_holds(rules.client("bob", parameters={"photos": "all"}, subscriptions={"site": {"site_id": 1}}), {})


def test_sensor_history() -> None:
    rules = rehearse("sensor_history")
    rules.insert("sensors", {"id": 1}, {"id": 2})
    rules.insert("sensor_access", id=11, sensor_id=1, user_id="ann")
    rules.insert("readings_2026_01", {"id": 21, "sensor_id": 1, "value": 1.5}, {"id": 22, "sensor_id": 2, "value": 2.5})
    rules.insert("readings_2026_02", id=23, sensor_id=1, value=3.5)
    rules.insert("alarms_2026", {"id": 31, "sensor_id": 1, "severity": 3}, {"id": 32, "sensor_id": 1, "severity": 2})
    ann = rules.client("ann", subscriptions={"readings": {"month": "2026_01"}})
    assert_holds(ann, {"sensors": [1], "readings": [21], "alarms_2026": [31]})
    assert ann.table("readings")[0]["month"] == "2026_01"
    both = rules.client("ann", subscriptions={"readings": [{"month": "2026_01"}, {"month": "2026_02"}]})
    both.assert_synced("readings", [21, 23])
    rules.delete("sensor_access", id=11)
    assert_holds(both, {})


def test_bucket_definitions() -> None:
    rules = rehearse("bucket_definitions")
    rules.insert("countries", id=1, name="NO", hidden=True)
    rules.insert("announcements", {"id": 2, "published": True}, {"id": 3, "published": False})
    rules.insert("notes", {"id": 11, "owner_id": "ann"}, {"id": 12, "owner_id": "bob"})
    rules.insert("users", {"id": "ann", "name": "Ann", "role": "admin"}, {"id": "bob", "name": "Bob", "role": "user"})
    rules.insert("boards", {"id": 21, "team_id": "red"}, {"id": 22, "team_id": "blue"})
    rules.insert("lists", {"id": 31, "owner_id": "ann"}, {"id": 32, "owner_id": "bob"})
    rules.insert("list_shares", id=33, list_id=32, user_id="ann")
    rules.insert("todos", {"id": 34, "list_id": 31}, {"id": 35, "list_id": 32})
    rules.insert("labels", {"id": 36, "used_in": [31, 32]}, {"id": 37, "used_in": [32]}, {"id": 38, "used_in": []})
    rules.insert("audit_log", id=41)
    rules.insert("feed", {"id": 51, "reader_id": "ann", "page": 1}, {"id": 52, "reader_id": "bob", "page": 1})
    ann = rules.client({"sub": "ann", "teams": ["red", "green"]}, parameters={"page": 1})
    bob = rules.client("bob")
    public: Ids = {"countries": [1], "announcements": [2]}
    full = public | {"notes": [11], "users": ["ann"], "boards": [21], "feed": [51], "audit_log": [41]}
    assert_holds(ann, full | {"lists": [31, 32], "todos": [34, 35], "labels": [36, 37]})
    assert_holds(bob, public | {"notes": [12], "users": ["bob"], "lists": [32], "todos": [35], "labels": [36, 37]})
    assert ids(ann, "teams") == {("red",), ("green",)}
    assert [set(bucket.parameters) for bucket in ann.buckets("pages")] == [{"ann", 1}]
    assert {bucket.priority for bucket in ann.buckets("public")} == {1}
    rules.delete("list_shares", id=33)
    assert_holds(ann, full | {"lists": [31], "todos": [34], "labels": [36]})
    rules.update("labels", {"id": 36}, used_in=[32])
    rules.update("users", {"id": "ann"}, role="user")
    rules.update("boards", {"id": 21}, team_id="blue")
    rules.update("feed", {"id": 51}, page=2)
    rules.update("announcements", {"id": 2}, published=False)
    rules.delete("lists", id=31)
    assert_holds(ann, {"countries": [1], "notes": [11], "users": ["ann"]})


def test_edition_2() -> None:
    rules = rehearse("edition_2")
    rules.insert("lists", {"id": 1, "owner_id": "ann"}, {"id": 2, "owner_id": "bob"})
    rules.insert("todos", {"id": 11, "list_id": 1}, {"id": 12, "list_id": 2})
    ann = rules.client("ann", subscriptions={"todos": [{"list_id": 1}, {"list_id": 2}]})
    assert_holds(rules.client("ann"), {"lists": [1]})
    assert_holds(ann, {"lists": [1], "todos": [11]})
    rules.update("lists", {"id": 1}, owner_id="bob")
    assert_holds(ann, {})
