"""What is proposed for tables: whose rows they are, what is left open, and that it is always a sync config."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import Severity
from headwater_rules.plan import SyncPlan
from headwater_rules.propose.outline import OutlinedTable, Reference
from headwater_rules.propose.propose import propose
from headwater_rules.schema import SourceSchema, SourceTable, column_of


def table(name: str, /, **columns: str) -> OutlinedTable:
    """A table with the key `id`; `bigint -> users.id` is a column with a foreign key."""
    schema, _, own = name.rpartition(".")
    found, references = [], []
    for column, text in ({"id": "bigint"} | columns).items():
        kind, _, target = (part.strip() for part in text.partition("->"))
        found.append(column_of(column, kind))
        if target:
            *place, to = target.split(".")
            references.append(Reference(column, place[0] if len(place) > 1 else "public", place[-1], to))
    return OutlinedTable(schema or "public", own, tuple(found), ("id",), tuple(references))


USERS = table("users", email="text")


def streams(*tables: OutlinedTable) -> dict[str, str]:
    """The conditions of what is proposed, by stream."""
    text = propose(tables).text
    compile_config(text)
    read = YAML(typ="safe").load(text)["streams"]
    return {name: " ".join(stream["query"].partition(" WHERE ")[2].split()) for name, stream in read.items()}


def uncommented(text: str) -> str:
    """A proposal with everything that it has commented out."""
    return re.sub(r"^#(?=  )", "", text, flags=re.MULTILINE).replace("streams: {}", "streams:")


ME = "CAST(user_id AS TEXT) = auth.user_id()"


def test_owner_column() -> None:
    found = streams(
        USERS,
        table("lists", owner_id="bigint -> users.id"),
        table("notes", user_id="bigint -> users.id", list_id="bigint -> lists.id"),
    )
    assert found["notes"] == ME
    assert found["lists"] == "CAST(owner_id AS TEXT) = auth.user_id()"


def test_tables_of_several_databases() -> None:
    own = table("lists", owner_id="bigint", name="text"), table("items", list_id="bigint -> lists.id")
    crm = [
        replace(each, tag="my-crm", references=tuple(replace(r, tag="my-crm") for r in each.references)) for each in own
    ]
    tables = (USERS, table("lists", user_id="bigint"), *crm, replace(table("visits", user_id="bigint"), tag="log"))
    proposal = propose(tables)
    mine = "CAST(owner_id AS TEXT) = auth.user_id()"
    assert streams(*tables) == {
        "users": "CAST(id AS TEXT) = auth.user_id()",
        "lists": ME,
        "my-crm_lists": mine,
        "items": f'list_id IN (SELECT id FROM "my-crm".public.lists WHERE {mine})',
        "visits": ME,
    }
    assert proposal.people == "public.users"
    plan = compile_config(proposal.text).plan
    assert {(each.tag, each.name) for each in plan.tables()} == {
        ("default", "users"), ("default", "lists"), ("my-crm", "lists"), ("my-crm", "items"), ("log", "visits"),
    }  # fmt: skip
    assert {source.output_table for bucket in plan.buckets for source in bucket.sources} == {*streams(*tables)}


def test_parent_in_another_database() -> None:
    lists = table("lists", user_id="bigint -> users.id")
    todos = replace(table("todos", list_id="bigint"), tag="crm")
    assert streams(USERS, lists, todos)["todos"] == f"list_id IN (SELECT id FROM lists WHERE {ME})"
    own = replace(table("lists", owner_id="bigint"), tag="crm")
    assert "FROM crm.public.lists" in streams(USERS, lists, todos, own)["todos"], "its own database first"
    writable = {each.name: each.policy for each in propose([USERS, lists, replace(todos, tag="")]).writable}
    assert "todos" in writable
    assert "todos" not in {each.name for each in propose([USERS, lists, todos]).writable}, "no policy can say so"


def test_other_user_columns() -> None:
    found = streams(USERS, table("reports", reported_user_id="bigint -> users.id", approved_by_id="bigint -> users.id"))
    assert found == {"users": "CAST(id AS TEXT) = auth.user_id()"}


def test_members() -> None:
    found = streams(
        USERS,
        table("teams", name="text"),
        table("team_members", team_id="bigint -> teams.id", user_id="bigint -> users.id", active="boolean",
              is_banned="boolean", left_at="timestamptz", suspended_at="timestamptz"),
        table("files", team_id="bigint -> teams.id"),
    )  # fmt: skip
    mine = f"(SELECT team_id FROM team_members WHERE {ME} AND active AND NOT is_banned AND left_at IS NULL"
    mine += " AND suspended_at IS NULL)"
    assert (found["teams"], found["files"]) == (f"id IN {mine}", f"team_id IN {mine}")
    assert found["team_members"] == ME


@pytest.mark.parametrize(
    ("column", "kind"),
    [("status", "text"), ("inviteState", "invite_state"), ("role", "integer"), ("expires_at", "date"),
     ("deleted", "timestamptz"), ("active", "smallint"), ("left_at", "boolean")],
)  # fmt: skip
def test_unclear_members(column: str, kind: str) -> None:
    tables = [
        USERS,
        table("teams", name="text"),
        table("team_members", team_id="bigint -> teams.id", user_id="bigint -> users.id", **{column: kind}),
        table("files", team_id="bigint -> teams.id"),
    ]
    assert streams(*tables).keys() == {"users", "team_members"}
    text = propose(tables).text
    assert f"# teams: write which {column} of team_members a member has" in text
    decided = YAML(typ="safe").load(uncommented(text))["streams"]
    assert f"WHERE id IN (SELECT team_id FROM team_members WHERE {ME}" in " ".join(decided["teams"]["query"].split())
    tables[1] = table("teams", owner_id="bigint -> users.id")
    assert streams(*tables)["teams"] == "CAST(owner_id AS TEXT) = auth.user_id()"


@pytest.mark.parametrize(
    "name", ["team_bans", "former_team_members", "teamMembersHistory", "team_blocked_users", "team_member_logs",
             "pending_memberships", "TeamApplications", "team_waitlist_members"],
)  # fmt: skip
def test_tables_of_non_members(name: str) -> None:
    bans = table(name, team_id="bigint -> teams.id", user_id="bigint -> users.id")
    tables = [USERS, table("teams", name="text"), bans]
    assert "teams" not in streams(*tables)
    assert name not in uncommented(propose(tables).text).partition("  teams:")[2]


def test_unclear_join_table() -> None:
    tables = [
        USERS,
        table("clubs", name="text"),
        table("club_links", club_id="bigint -> clubs.id", user_id="bigint -> users.id"),
    ]
    assert "clubs" not in streams(*tables)
    text = propose(tables).text
    assert "# clubs: decide whether club_links is a table of members: its name does not say so" in text
    assert "#      WHERE id IN (SELECT club_id FROM club_links" in text


def test_likes_and_purchases() -> None:
    found = streams(
        USERS,
        table("posts", title="text"),
        table("likes", post_id="bigint -> posts.id", user_id="bigint -> users.id"),
        table("orders", post_id="bigint -> posts.id", user_id="bigint -> users.id", price="numeric", at="date"),
    )
    assert found.keys() == {"users", "likes", "orders"}


def test_external_user_id() -> None:
    users = table("users", email="text", firebase_uid="text")
    found = streams(users, table("notes", user_id="bigint -> users.id"))
    assert found["users"] == "firebase_uid = auth.user_id()"
    assert found["notes"] == "user_id IN (SELECT id FROM users WHERE firebase_uid = auth.user_id())"


def test_polymorphic_id() -> None:
    lists = table("lists", owner_id="bigint -> users.id")
    assert "remarks" not in streams(USERS, lists, table("remarks", list_id="bigint", list_type="text"))
    assert streams(USERS, lists, table("remarks", list_id="bigint"))["remarks"].startswith("list_id IN (SELECT id")


@pytest.mark.parametrize("beside", ["owner_type", "ownerKind", "owner_class"])
def test_polymorphic_owner(beside: str) -> None:
    files = table("files", owner_id="bigint", list_id="bigint -> lists.id", **{beside: "text"})
    lists = table("lists", user_id="bigint -> users.id")
    assert "files" in streams(USERS, lists, table("files", owner_id="bigint"))
    text = propose([USERS, lists, files]).text
    assert "files" not in streams(USERS, lists, files)
    assert "# files: owner_id may name others than users" in text


def test_secret_key() -> None:
    sessions = replace(table("sessions", token="text", user_id="bigint -> users.id"), key=("token",))
    sessions = replace(sessions, columns=sessions.columns[1:])
    assert "sessions" not in streams(USERS, sessions)
    assert "# sessions: its key token looks secret" in propose([USERS, sessions]).text


@pytest.mark.parametrize("columns", [("list_id", "folder_id"), ("folder_id", "list_id")])
def test_two_parents(columns: tuple[str, ...]) -> None:
    parents = [table(name, user_id="bigint -> users.id") for name in ("lists", "folders")]
    item = table("items", **{each: f"bigint -> {each.removesuffix('_id')}s.id" for each in columns})
    assert "items" not in streams(USERS, *parents, item)
    text = propose([USERS, *parents, item]).text
    assert f"# items: it may belong to what {', '.join(columns)} name: keep what is meant" in text
    assert all(f"{each} IN (SELECT id" in text for each in columns)
    owned = replace(item, references=tuple(replace(r, owning=r.column == "folder_id") for r in item.references))
    assert streams(USERS, *parents, owned)["items"].startswith("folder_id IN (SELECT id FROM folders")


def test_same_name_in_two_schemas() -> None:
    found = streams(USERS, table("notes", user_id="bigint"), table("old.notes", user_id="bigint -> public.users.id"))
    assert found.keys() == {"users", "notes", "old_notes"}


def test_secrets_and_framework_tables() -> None:
    proposal = propose([
        table("users", email="text", encrypted_password="text", api_key="text"),
        table("django_admin_log", user_id="bigint -> users.id"),
    ])  # fmt: skip
    query = next(line for line in proposal.text.splitlines() if "query" in line)
    assert not re.search("password|api_key|\\*", query)
    assert proposal.left_out == ("public.django_admin_log",)


_NAMES = ("users", "lists", "Todo", "list_members", "order", "odd name", "likes", "profiles", "user_teams", "teams")
_COLUMNS = ("user_id", "ownerId", "list_id", "team_id", "author_id", "profile_id", "email", "active", "select", 'a"b',
            "owner_type", "user_kind", "list_type")  # fmt: skip


@st.composite
def outlines(draw: st.DrawFn) -> list[OutlinedTable]:
    names = draw(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=6, unique=True))
    found = []
    for name in names:
        columns = draw(st.lists(st.sampled_from(_COLUMNS), max_size=4, unique=True))
        kind = draw(st.sampled_from(["bigint", "uuid", "text"]))
        references = [
            Reference(column, "public", target, "id")
            for column in columns
            if (target := draw(st.sampled_from([*names, ""]))) and target != name
        ]
        found.append(
            OutlinedTable(
                "public", name, tuple(column_of(each, kind) for each in ("id", *columns)),
                draw(st.sampled_from([(), ("id",), ("id", *columns[:1])])), tuple(references),
            )
        )  # fmt: skip
    return found


def _for_everybody(plan: SyncPlan) -> list[str]:
    return [bucket.name for bucket in plan.buckets if any(not source.params for source in bucket.sources)]


@settings(max_examples=40, deadline=None)
@given(outlines())
def test_any_tables_compile_and_no_row_goes_to_everybody(tables: list[OutlinedTable]) -> None:
    proposal = propose(tables)
    schema = SourceSchema(tuple(SourceTable("default", each.schema, each.name, each.columns) for each in tables))
    compiled = compile_config(proposal.text, schema=schema)
    assert _for_everybody(compiled.plan) == []
    assert [each for each in compiled.warnings if each.severity is Severity.FATAL] == []
    assert len(compile_config(uncommented(proposal.text)).plan.streams) == len(tables)


def test_many_buckets_warn() -> None:
    users = replace(USERS, rows=20)
    projects = table("projects", owner_id="bigint -> users.id")
    tasks = table("tasks", project_id="bigint -> projects.id")
    comments = table("comments", task_id="bigint -> tasks.id")

    def crowded(users: OutlinedTable, of_projects: int, of_tasks: int | None) -> list[tuple[str, str, int | None]]:
        proposal = propose((users, replace(projects, rows=of_projects), replace(tasks, rows=of_tasks), comments))
        compile_config(proposal.text)
        told = re.sub(r"\n +# ", " ", proposal.text)
        assert all(f"CAUTION: {each}: {each.fix}." in told for each in proposal.crowded)
        assert ("CAUTION" in told) == bool(proposal.crowded)
        return [(each.table.name, each.parents.name, each.each) for each in proposal.crowded]

    assert crowded(users, 60, 48_000) == [("comments", "tasks", 2400)]
    assert crowded(users, 2_000, 48_000) == [("tasks", "projects", 100), ("comments", "tasks", 2400)]
    assert crowded(replace(USERS, rows=None), 60, 1_000) == [("comments", "tasks", None)]
    assert crowded(replace(users, rows=10_000), 2_000, 48_000) == [], "few for each user"
    assert crowded(users, 60, 999) == crowded(users, 60, None) == []


@pytest.mark.parametrize(
    "login",
    [{"password_hash": "text"}, {"auth0_id": "text"}, {"encryptedPassword": "text"}, {"lastLogin": "timestamptz"}],
)
def test_users_table(login: dict[str, str]) -> None:
    tables = [
        table("customers", email="text", phone="text"),
        table("technicians", email="text", **login),
        table("jobs", customer_id="bigint -> customers.id", technician_id="bigint -> technicians.id"),
    ]
    proposal = propose(tables)
    assert proposal.people == "public.technicians"
    assert [each.table.name for each in proposal.candidates] == ["technicians", "customers"]
    assert "OR" not in proposal.text.partition("  jobs:")[2]
    assert propose(tables, "customers").people == "public.customers"


def test_password_table() -> None:
    tables = [
        table("users", email="text"),
        table("credentials", user_id="bigint -> users.id", password_hash="text"),
        table("mail_servers", username="text", password="text"),
        table("notes", user_id="bigint -> users.id"),
    ]
    assert propose(tables).people == "public.users"


def test_writable_tables() -> None:
    lists = table("lists", id="uuid", owner_id="bigint -> users.id", name="text", role="text")
    items = table("items", id="uuid", list_id="uuid -> lists.id", text="text", secret="text", total="bigint")
    items = replace(items, computed=frozenset({"total"}))
    proposal = propose([
        table("users", email="text", password="text", is_admin="boolean"),
        table("profiles", id="bigint -> users.id", bio="text"),
        lists,
        items,
        table("teams", name="text"),
        table("team_members", id="uuid", team_id="bigint -> teams.id", user_id="bigint -> users.id"),
        table("documents", id="uuid", team_id="bigint -> teams.id"),
        table("payments", id="uuid", user_id="bigint -> users.id", amount="numeric"),
        table("notes", user_id="bigint -> users.id", body="text"),
        replace(table("marks", id="uuid", user_id="bigint -> users.id", made_by="text", token="text"),
                required=frozenset({"token"})),
    ])  # fmt: skip
    assert {each.name: (each.columns, each.operations) for each in proposal.writable} == {
        "lists": (("owner_id", "name"), ("insert", "update", "delete")),
        "items": (("list_id", "text"), ("insert", "update", "delete")),
        "notes": (("user_id", "body"), ("update", "delete")),  # Postgres counts its ids
        "marks": (("user_id", "made_by"), ("update", "delete")),  # a device has no token
    }
    policy = {each.name: each.policy for each in proposal.writable}
    me = "current_setting('request.jwt.claims', true)::json ->> 'sub'"
    assert policy["lists"] == f"owner_id::text = {me}"
    assert policy["items"] == f"list_id IN (SELECT id FROM lists WHERE owner_id::text = {me})"


def test_cascading_delete() -> None:
    lists = table("lists", id="uuid", owner_id="bigint -> users.id")
    items = table("items", id="uuid", list_id="uuid -> lists.id")
    items = replace(items, references=tuple(replace(each, owning=True) for each in items.references))
    operations = {each.name: each.operations for each in propose([USERS, lists, items]).writable}
    assert operations == {"lists": ("insert", "update"), "items": ("insert", "update", "delete")}
