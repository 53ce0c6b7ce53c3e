"""`headwater init` on databases as people make them: what it writes is right, and gives nobody another's rows."""

from __future__ import annotations

import io
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from headwater.cli.config import load_config
from headwater.cli.init.hosts import WRITER, by_name
from headwater.config import ConfigSource
from headwater.source.catalog.schema import read_outline, read_schema
from headwater.source.readiness.prepare import prepare
from headwater.source.upload.prepare import check_uploads, prepare_uploads
from headwater_rules.compiler.compile import Compiled, compile_config
from headwater_rules.errors import RuleCode
from headwater_rules.propose.propose import Proposal, propose
from tests.support.command import headwater_here
from tests.support.example_schemas import GIVEN, NAMED, USERS, make_django_tables, make_example
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb


def proposed(source: SourceDb, name: str) -> Proposal:
    make_example(source, name)
    return propose(read_outline(source.settings()), NAMED.get(name))


def checked(source: SourceDb, text: str, *but: RuleCode) -> Compiled:
    """Compiled against the database, without any comparison that can't be true, or table that is not there, or another
    warning `but` these."""
    compiled = compile_config(text, schema=read_schema(source.settings()), advise=True)
    harmless = {RuleCode.NOT_SENT, RuleCode.BUCKET_PER_ROW, *but}  # nothing is published yet
    assert [each.message for each in compiled.warnings if each.code not in harmless] == []
    return compiled


def all_streams(text: str) -> str:
    """The sync config with everything that it has commented out."""
    return re.sub(r"^#(?=  )", "", text, flags=re.MULTILINE).replace("streams: {}", "streams:")


@pytest.mark.parametrize("name", GIVEN)
def test_proposed_rules_give_rows_to_users(name: str, source_db: SourceDb) -> None:
    proposal = proposed(source_db, name)
    compiled = checked(source_db, proposal.text)
    assert _streams(compiled) == GIVEN[name]
    assert all(source.params for bucket in compiled.plan.buckets for source in bucket.sources), "a bucket for everybody"
    assert _streams(checked(source_db, all_streams(proposal.text), RuleCode.EVERYBODY)) >= {
        *GIVEN[name],
        *(each.rpartition(".")[2] for each in proposal.undecided),
    }
    assert "password" not in str(compiled.plan).lower()


@pytest.mark.long
@pytest.mark.parametrize("name", GIVEN)
def test_devices_sync_by_proposed_rules(name: str, deploy: Deploy, source_db: SourceDb) -> None:
    text = proposed(source_db, name).text
    prepare(source_db.settings(), compile_config(text).plan.tables())
    deployed = deploy(text).start()
    ann, bob = (deployed.rows(user) for user in USERS[name])
    assert {table for table, _ in (*ann, *bob)} == GIVEN[name]
    assert not {key for key in ann if key in bob}
    assert "of Bob" not in str(list(ann.values()))
    assert "of Ann" not in str(list(bob.values()))


def _streams(compiled: Compiled) -> set[str]:
    return {stream.name for stream in compiled.plan.streams}


def test_written_files_work(source_db: SourceDb, tmp_path: Path) -> None:
    make_example(source_db, "rails")
    uri = source_db.uri.replace("@", ":it's%20a%20secret@")
    done = headwater_here("init", "--yes", "--sdk", "ts", cwd=tmp_path, HEADWATER_SOURCE_URI=uri)
    assert done.code == 0, done.err
    assert "secret" not in done.out + (tmp_path / "headwater.yaml").read_text() + (tmp_path / "sync.yaml").read_text()
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    config = load_config(ConfigSource(), {}, tmp_path)
    assert config.warnings == ()
    assert config.source().password == "it's a secret"
    assert "tasks: new Table({" in done.out
    assert "fetchCredentials" in done.out
    assert 'CREATE PUBLICATION "headwater" FOR TABLE' in done.out
    assert "countries" in done.out.partition("Commented out")[2]
    for arguments in (["rules", "check", "sync.yaml", "--schema"], ["source", "prepare"], ["token", "1"]):
        assert headwater_here(*arguments, cwd=tmp_path).code == 0


def test_table_with_a_dot_of_a_tagged_database(new_source_db: Callable[[], SourceDb], tmp_path: Path) -> None:
    app, crm = new_source_db(), new_source_db()
    app.execute("create table users (id uuid primary key)")
    crm.execute('create table "deals.old" (id uuid primary key, user_id uuid)')
    done = headwater_here("init", "-y", "--sdk", "none", "--uri", app.uri, "--uri", f"crm={crm.uri}", cwd=tmp_path)
    assert done.code == 0, done.err
    assert 'FROM crm.public."deals.old"' in (tmp_path / "sync.yaml").read_text()
    checked_here = headwater_here("rules", "check", "sync.yaml", "--schema", cwd=tmp_path)
    assert checked_here.code == 0, checked_here.err


def test_one_database_under_two_tags_is_refused(source_db: SourceDb, tmp_path: Path) -> None:
    source_db.execute("create table users (id uuid primary key)")
    done = headwater_here("init", "-y", "--uri", source_db.uri, "--uri", f"crm={source_db.uri}", cwd=tmp_path)
    assert done.code == 2
    assert "crm is the database that default is" in done.err
    assert list(tmp_path.iterdir()) == []


def test_several_databases(new_source_db: Callable[[], SourceDb], roles: Callable[[str], None], tmp_path: Path) -> None:
    app, crm = new_source_db(), new_source_db()
    app.execute(
        "create table users (id uuid primary key, email text);"
        "create table lists (id uuid primary key, owner_id uuid references users, name text)"
    )
    crm.execute(
        "create table deals (id uuid primary key, user_id uuid, title text);"
        "create table steps (id uuid primary key, deal_id uuid references deals, body text)"
    )
    arguments = ["init", "-y", "--upload", "--sdk", "ts", "--uri", app.uri]
    tagged = ["--uri", f"my-crm={crm.uri.replace('@', ':its-secret@')}"]
    done = headwater_here(*arguments, *tagged, cwd=tmp_path)
    assert done.code == 0, done.err
    assert all(f"{name}: new Table(" in done.out for name in ("lists", "deals", "steps"))
    config = load_config(ConfigSource(), {}, tmp_path)
    assert config.warnings == ()
    assert [(each.name, each.password) for each in config.sources] == [("default", ""), ("my-crm", "its-secret")]
    assert "its-secret" not in (tmp_path / "headwater.yaml").read_text()
    checked_here = headwater_here("rules", "check", "sync.yaml", "--schema", cwd=tmp_path)
    assert checked_here.code == 0, checked_here.out + checked_here.err
    for source, name in ((app, "default"), (crm, "my-crm")):
        source.execute((tmp_path / f"policies-{name}.sql").read_text())
    assert headwater_here("source", "prepare", "--upload", cwd=tmp_path).code == 0
    uploads = config.uploads().by_source()
    assert [{rule.name for rule in each.tables.values()} for each in uploads.values()] == [
        {"lists"},
        {"deals", "steps"},
    ]
    assert [check_uploads(each) for each in uploads.values()] == [(), ()]
    for source in (app, crm):
        source.execute(f"drop owned by {WRITER}")
    for wrong in ([*tagged, *tagged], ["--uri", crm.uri], ["--uri", f"crm/eu={crm.uri}"], ["--uri", f"a b={crm.uri}"]):
        refused = headwater_here(*arguments, "--force", *wrong, cwd=tmp_path)
        assert (refused.code, "Traceback" in refused.err) in {(1, False), (2, False)}, wrong


def test_too_many_buckets_are_named(source_db: SourceDb, tmp_path: Path) -> None:
    source_db.execute(
        "create table users (id bigint primary key, email text);"
        "create table tasks (id bigint primary key, user_id bigint references users);"
        "create table comments (id bigint, task_id bigint references tasks, at date, primary key (id, at))"
        " partition by range (at);"
        "create table comments_1 partition of comments for values from ('2026-01-01') to ('2027-01-01');"
        "insert into users values (1, 'ann'), (2, 'bob');"
        "insert into tasks select n, 1 + n % 2 from generate_series(1, 3000) n;"
        "insert into comments select n, n, '2026-05-01' from generate_series(1, 500) n; analyze"
    )
    rows = {table.name: table.rows for table in read_outline(source_db.settings())}
    assert rows == {"users": 2, "tasks": 3000, "comments": 500}
    done = headwater_here("init", "--yes", "--sdk", "none", "--uri", source_db.uri, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "CAUTION: the stream comments has a bucket for each row of tasks, which has about 3,000, 1,500" in done.out
    assert "CAUTION: a bucket for each row of tasks" in (tmp_path / "sync.yaml").read_text()


def test_init_asks(source_db: SourceDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_example(source_db, "pagila")
    uri = source_db.uri.replace("@", ":secret@")
    monkeypatch.setattr("sys.stdin", io.StringIO("customer\nn\n"))
    refused = headwater_here("init", "--sdk", "none", "--uri", uri, cwd=tmp_path)
    assert (refused.code, list(tmp_path.iterdir())) == (130, [])
    assert "users in public.staff" in refused.out
    assert "or --users: public.customer (has email, " in refused.out
    monkeypatch.setattr("sys.stdin", io.StringIO("customer\ny\n\n"))
    done = headwater_here("init", "--sdk", "none", "--uri", uri, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "May devices write, through Headwater, to rows of theirs in rental?" in done.out
    assert _streams(compile_config((tmp_path / "sync.yaml").read_text())) == GIVEN["pagila"]
    untold = headwater_here("init", "--force", cwd=tmp_path)
    assert (untold.code, "--uri" in untold.err) == (2, True)
    unknown = headwater_here("init", "--yes", "--force", "--uri", uri, "--users", "nobody", cwd=tmp_path)
    assert (unknown.code, "HW_8601" in unknown.err) == (1, True)


def test_existing_files_are_kept(source_db: SourceDb, tmp_path: Path) -> None:
    source_db.execute("create table notes (id text primary key, user_id text)")
    (tmp_path / "sync.yaml").write_text("mine")
    arguments = ["init", "--yes", "--sdk", "none", "--uri", source_db.uri]
    refused = headwater_here(*arguments, cwd=tmp_path)
    assert (refused.code, "sync.yaml exists already" in refused.err) == (1, True), refused.err
    assert [each.name for each in tmp_path.iterdir()] == ["sync.yaml"]
    assert headwater_here(*arguments, "--force", cwd=tmp_path).code == 0
    assert "user_id = auth.user_id()" in (tmp_path / "sync.yaml").read_text()


def test_existing_secrets_are_kept(source_db: SourceDb, tmp_path: Path) -> None:
    source_db.execute("create table notes (id text primary key, user_id text)")
    secrets = tmp_path / ".env"
    secrets.write_text("STRIPE_KEY='of the app'\nexport PS_JWT_SECRET=mine-since-years")
    secrets.chmod(0o644)
    arguments = ["init", "--yes", "--sdk", "none", "--uri", source_db.uri.replace("@", ":new@")]
    for more in ([], ["--force"]):
        done = headwater_here(*arguments, *more, cwd=tmp_path)
        assert done.code == 0, done.err
        assert "keeps its" in done.out
    assert secrets.read_text().startswith("STRIPE_KEY='of the app'\nexport PS_JWT_SECRET=mine-since-years\nPS_SOURCE")
    assert len(re.findall("^PS_ADMIN_TOKEN=", secrets.read_text(), re.MULTILINE)) == 1
    assert secrets.read_text().count("PS_JWT_SECRET") == 1
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    assert {each.name for each in tmp_path.iterdir()} == {".env", "headwater.yaml", "sync.yaml"}


def test_existing_files_are_named_first(tmp_path: Path) -> None:
    (tmp_path / "headwater.yaml").write_text("mine")
    refused = headwater_here("init", cwd=tmp_path)
    assert (refused.code, "headwater.yaml exists already" in refused.err) == (1, True), refused.err


@pytest.mark.parametrize("uri", ["postgresql://u:p[x@host/db", "postgresql://u:p\u2100x@host/db", "u:p[x@host/db"])
def test_bad_address_is_not_repeated(uri: str, tmp_path: Path) -> None:
    refused = headwater_here("init", "--yes", "--uri", uri, cwd=tmp_path)
    assert (refused.code, "--uri" in refused.err, "Traceback" in refused.err) == (1, True, False), refused.err
    assert "x@host" not in refused.out + refused.err


def test_odd_names_compile(source_db: SourceDb) -> None:
    words = source_db.fetch("select word from pg_get_keywords() where catcode in ('R', 'T')")
    for number, (word,) in enumerate(words):
        source_db.execute(f'create table "{word}" (id int primary key, user_id int, "{words[number - 1][0]}" text)')
    source_db.execute('create table "it\'s: #1 \\ ""quoted""" (id int primary key, user_id int, "a  b" text)')
    source_db.execute('create schema "Other"; create table "Other".select (id int primary key, "userId" int)'
                      .replace(".select", '."select"'))  # fmt: skip
    proposal = propose(read_outline(source_db.settings()))
    assert len(_streams(checked(source_db, proposal.text))) == len(words) + 2


@pytest.mark.long
def test_django_tables(deploy: Deploy, source_db: SourceDb) -> None:
    make_django_tables(source_db)
    proposal = propose(read_outline(source_db.settings()))
    assert _streams(checked(source_db, proposal.text)) == {
        "auth_user", "app_notebook", "app_notebook_members", "app_page",
    }  # fmt: skip
    deployed = deploy(proposal.text).start()
    assert {table: row.get("text") for (table, _), row in deployed.rows("1").items()} == {
        "auth_user": None, "app_notebook": None, "app_page": "of ann",
    }  # fmt: skip
    source_db.execute("insert into app_notebook_members (notebook_id, user_id) values (2, 1)")
    assert sorted(str(row["text"]) for (table, _), row in deployed.rows("1").items() if table == "app_page") == [
        "of ann", "of bob",
    ]  # fmt: skip
    assert all("password" not in row for row in deployed.rows("1").values())


@pytest.fixture
def roles(source_db: SourceDb) -> Iterator[Callable[[str], None]]:
    """`roles("a login, b nologin")` makes roles of a host. They belong to the server, so they go with the test."""
    made = [WRITER]

    def make(text: str) -> None:
        for each in text.split(", "):
            made.append(each.split()[0])
            source_db.execute(f"create role {each}")

    yield make
    for name in reversed(made):
        if source_db.fetch("select from pg_roles where rolname = %s", name):
            source_db.execute(f"reassign owned by {name} to postgres; drop owned by {name}; drop role {name}")


def as_owner(source: SourceDb, login: str) -> str:
    """Give everything in `public` to a role that is no superuser, as a host does. Returns its URI."""
    source.execute(f'alter database "{source.name}" owner to {login}; alter schema public owner to {login}')
    for (table,) in source.fetch("select tablename from pg_tables where schemaname = 'public'"):
        source.execute(f'alter table "{table}" owner to {login}')
    return source.uri.replace("postgres@", f"{login}@")


def test_rds_has_no_superuser(roles: Callable[[str], None], source_db: SourceDb, tmp_path: Path) -> None:
    make_example(source_db, "prisma")
    roles("rds_superuser, rds_replication, rds_main login replication createrole in role rds_superuser")
    uri = as_owner(source_db, "rds_main")
    done = headwater_here("init", "-y", "--sdk", "none", "--upload", "--uri", uri, cwd=tmp_path)
    assert (done.code, "This is Amazon RDS (docs/postgres-rds.md)" in done.out) == (0, True), done.err
    assert "may not replicate" not in done.out
    with psycopg.connect(uri, autocommit=True) as conn:
        conn.execute((tmp_path / "policies.sql").read_bytes())
    prepared = headwater_here("source", "prepare", "--upload", cwd=tmp_path)
    assert (prepared.code, "HW_2020" in prepared.err) == (0, True), "event triggers are left out, and nothing else"
    assert "5 tables published" in prepared.out
    found = headwater_here("doctor", cwd=tmp_path)
    assert " 0 FAIL" in found.out, found.out
    source_db.execute("alter role rds_main noreplication")
    again = headwater_here("init", "-y", "--sdk", "none", "--force", "--uri", uri, cwd=tmp_path)
    assert "this role may not replicate: run GRANT rds_replication TO it, as the main user" in again.out
    source_db.execute("grant rds_replication to rds_main")
    again = headwater_here("init", "-y", "--sdk", "none", "--force", "--uri", uri, cwd=tmp_path)
    assert "may not replicate" not in again.out


def test_supabase_policies(roles: Callable[[str], None], source_db: SourceDb, tmp_path: Path) -> None:
    make_example(source_db, "supabase")
    roles("supabase_admin, authenticated, sb_login login replication bypassrls createrole")
    uri = as_owner(source_db, "sb_login")
    source_db.execute(
        "grant authenticated to sb_login; grant usage on schema auth to sb_login, authenticated;"
        "grant select on auth.users to sb_login; alter table todos enable row level security;"
        "create function auth.uid() returns uuid stable language sql as $$"
        " select coalesce(nullif(current_setting('request.jwt.claim.sub', true), ''),"
        " current_setting('request.jwt.claims', true)::jsonb ->> 'sub')::uuid $$;"
        "create policy own on todos to authenticated using (auth.uid() = user_id)"
    )
    done = headwater_here("init", "-y", "--app", "web", "--upload", "--uri", uri, cwd=tmp_path)
    assert (done.code, "This is Supabase (docs/postgres-supabase.md)" in done.out) == (0, True), done.err
    assert "users in auth.users" in done.out
    assert "http://127.0.0.1:54321/auth/v1/.well-known/jwks.json" in (tmp_path / "headwater.yaml").read_text()
    assert not (tmp_path / "policies.sql").exists(), "todos has policies of its own"
    config = load_config(ConfigSource(path=tmp_path / "headwater.yaml"), {}, tmp_path)
    assert (config.uploads().role, [*config.uploads().tables]) == ("authenticated", ["todos"])
    assert headwater_here("source", "prepare", "--upload", cwd=tmp_path).code == 0
    token = headwater_here("token", USERS["supabase"][0], cwd=tmp_path)
    assert token.code == 0, token.err


def test_host_tells_provider(source_db: SourceDb) -> None:
    def known(host: str) -> list[tuple[str, str | None]]:
        named = replace(source_db.settings(), host=host)
        return [(each.name, each.project) for each in (by_name(named),) if each is not None]

    assert known("db.abcdefghij.supabase.co") == [("Supabase", "abcdefghij")]
    assert known("EP-cool-1.eu-central-1.aws.neon.tech.") == [("Neon", None)]
    assert known("shop.ab12.eu-central-1.rds.amazonaws.com") == [("Amazon RDS", None)]
    assert known("shop.ab12.rds.cn-north-1.amazonaws.com.cn") == [("Amazon RDS", None)]
    assert known("supabase.co.example.com") == []


@pytest.mark.parametrize("name", GIVEN)
def test_proposed_uploads_are_ready(
    name: str, roles: Callable[[str], None], source_db: SourceDb, tmp_path: Path
) -> None:
    """Whether a device may then write is asked of the page, in tests/e2e."""
    make_example(source_db, name)
    done = headwater_here("init", "-y", "--app", "web", "--upload", "--uri", source_db.uri, cwd=tmp_path)
    assert done.code == 0, done.err
    config = load_config(ConfigSource(), {}, tmp_path)
    assert config.warnings == ()
    if not (tmp_path / "policies.sql").exists():
        assert config.upload is None, "nothing has a key that uploads can find"
        return
    source_db.execute((tmp_path / "policies.sql").read_text())
    prepare_uploads(config.uploads())
    assert check_uploads(config.uploads()) == ()
    source_db.execute(f"set role {WRITER}")
    for rule in config.uploads().tables.values():
        written = ", ".join(f'"{each}"' for each in rule.columns or ()) or "1"
        source_db.fetch(f'select {written} from "{rule.schema}"."{rule.name}"')
    source_db.execute("reset role")
