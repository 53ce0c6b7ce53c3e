"""Writes a web page that shows the rows of one table, with the stock web SDK: `headwater init --app web`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import psycopg
from psycopg import sql

from headwater.config.document import ConfigError, ConfigIssue
from headwater.source.connect import SourceSettings, connect
from headwater_rules.describe.client_schema import ClientSchema, schema_code
from headwater_rules.propose.outline import OutlinedTable, Place
from headwater_rules.propose.propose import Proposal
from headwater_rules.propose.routes import People
from headwater_rules.propose.sql import StreamTable, Writable
from headwater_rules.propose.words import MEMBERSHIPS, is_secret, last_word, snake
from headwater_rules.schema import Language, SourceColumn, ValueKind

FOLDER = "app"
_TITLES = ("title", "name", "subject", "summary", "label", "task", "text", "body", "content", "description", "username")
_BUSIEST = "select owner from {} where owner is not null group by 1 order by count(*) desc, 1"
_LATELY = 1000  # rows that are looked at to find a user who has some


@dataclass(frozen=True, slots=True)
class Page:
    """What the page shows, what it may write there, and a user who has rows of it, if one was found."""

    shown: StreamTable
    writable: Writable | None
    user: str | None


def page_for(proposal: Proposal, sources: Iterable[SourceSettings], *, uploads: bool) -> Page | None:
    """The page for the table that is likeliest to say something; None when devices get no table. Reads a few ids of
    users, and no other value."""
    writable = {each.table.place: each for each in proposal.writable} if uploads else {}
    people = proposal.users
    shown = max(proposal.shown, key=lambda each: _worth(each, writable.get(each.table.place), people), default=None)
    if shown is None:
        return None
    return Page(shown, writable.get(shown.table.place), _a_user(sources, shown, people))


def _worth(shown: StreamTable, writable: Writable | None, people: People | None) -> tuple[int, ...]:
    table = shown.table
    operations = () if writable is None else writable.operations
    plain = table.id_column is not None and last_word(table.name) not in MEMBERSHIPS
    return (
        plain and (people is None or table.place != people.table.place),
        len({"insert", "update"} & {*operations}),
        shown.owner is not None,
        any(snake(column.name) in _TITLES for column in table.columns),
        -len(table.references),
    )


def _a_user(sources: Iterable[SourceSettings], shown: StreamTable, people: People | None) -> str | None:
    """What a token calls somebody who has rows of the table, or else any user."""
    by_tag = {source.written_tag: source for source in sources}
    for table, query in _queries(shown, people):
        with connect(by_tag[table.tag]) as conn:
            try:
                found = conn.execute(query).fetchone()
            except psycopg.Error:  # such as a right that `source prepare` will grant
                continue
            if found is not None:
                return str(found[0])
    return None


def _queries(shown: StreamTable, people: People | None) -> Iterator[tuple[OutlinedTable, sql.Composed]]:
    """Queries, each with a table of the database that it is for."""
    rows, most = sql.Identifier(*shown.table.own_place), sql.Literal(_LATELY)
    if shown.owner is not None:
        owner = sql.Identifier(shown.owner)
        lately = sql.SQL("(select {}::text as owner from {} limit {}) t").format(owner, rows, most)
        if people is None or people.subject == people.key:
            yield shown.table, sql.SQL(_BUSIEST).format(lately)
        elif people.table.tag == shown.table.tag:
            users, key, subject = (
                sql.Identifier(*people.table.own_place),
                *map(sql.Identifier, (people.key, people.subject)),
            )
            query = sql.SQL(
                "select u.{}::text from {} join {} u on u.{}::text = t.owner where u.{} is not null"
                " group by 1 order by count(*) desc, 1"
            ).format(subject, lately, users, key, subject)
            yield shown.table, query
    if people is not None:
        users, subject = sql.Identifier(*people.table.own_place), sql.Identifier(people.subject)
        anybody = sql.SQL("select {}::text from {} where {} is not null order by 1 limit 1")
        yield people.table, anybody.format(subject, users, subject)


def write_page(folder: Path, page: Page, proposal: Proposal, tables: ClientSchema) -> None:
    """Write the page's files. Raises ConfigError when that fails."""
    try:
        for path, text in _files(page, proposal, tables).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        issue = ConfigIssue(f"the page can't be written: {error.strerror}", fix="check the directory's rights")
        raise ConfigError(str(folder.resolve()), [issue]) from error


def _files(page: Page, proposal: Proposal, tables: ClientSchema) -> Mapping[str, str]:
    templates = resources.files(__package__).joinpath("web")
    files = {path: each.read_text(encoding="utf-8") for path, each in _tree(templates)}
    files[".gitignore"] = files.pop("gitignore")
    files["index.html"] = files["index.html"].replace("NAME", page.shown.name)
    files["src/AppSchema.ts"] = schema_code(tables, Language.TS)
    files["src/table.ts"] = _table(page, proposal)
    files[".env.local"] = _local(page)
    return files


def _tree(folder: Traversable, before: str = "") -> Iterator[tuple[str, Traversable]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _tree(each, f"{before}{each.name}/")
        else:
            yield f"{before}{each.name}", each


def _local(page: Page) -> str:
    command = Path(sys.executable).with_name("headwater")
    program = str(command) if command.exists() else shutil.which("headwater") or "headwater"
    user = "" if page.user is None else f"VITE_USER={json.dumps(page.user)}\n"
    about = "# What only this machine has: the command that makes tokens, and who is signed in at first\n"
    return f"{about}HEADWATER={program}\n{user}"


def _table(page: Page, proposal: Proposal) -> str:
    table, writable = page.shown.table, page.writable
    title = title_of(table)
    operations = [] if writable is None else list(writable.operations)
    shown = {each.table.place: each for each in proposal.shown}
    fields = list(_fields(page, title, proposal.users, shown)) if "insert" in operations else []
    described = {
        "name": page.shown.name,
        "title": title,
        "operations": operations,
        "changeable": "update" in operations and writable is not None and title in writable.columns,
        "fields": fields,
        "note": _note(operations, proposal),
    }
    return (
        "// What the page shows, and how a new row is made.\n"
        "export type Field = { name: string } & (\n"
        "  | { kind: 'text' | 'number' | 'user' | 'now' | 'today' }\n"
        "  | { kind: 'choice'; choices: string[] }\n"
        "  | { kind: 'parent'; table: string; column: string; title: string }\n"
        "  | { kind: 'value'; value: string | number }\n"
        ");\n\n"
        "export const table: {\n"
        "  name: string;\n  title: string;\n  operations: string[];\n  changeable: boolean;\n  fields: Field[];\n"
        "  note: string;\n"
        f"}} = {json.dumps(described, indent=2, ensure_ascii=False)};\n"
    )


def _note(operations: Sequence[str], proposal: Proposal) -> str:
    if "insert" in operations or not operations:
        return "" if operations else "The page only shows them: devices may not write to this table."
    return "Devices add none: Postgres makes the ids, or values that devices do not have."


def title_of(table: OutlinedTable) -> str:
    """The column that says most about a row."""
    texts = [
        each.name
        for each in table.columns
        if each.kind is ValueKind.TEXT and each.name not in table.key and not is_secret(each.name)
    ]
    free = [each for each in texts if table.reference(each) is None and each not in dict(table.choices)]
    named = [each for word in _TITLES for each in free if snake(each) == word]
    ending = [each for each in free if snake(each).rpartition("_")[2] in _TITLES]
    others = [each.name for each in table.columns if each.name not in table.key]
    return next(iter((*named, *ending, *free, *others, *table.key)), "id")


def _fields(
    page: Page, title: str, people: People | None, shown: Mapping[Place, StreamTable]
) -> Iterator[dict[str, object]]:
    table = page.shown.table
    wanted = {*table.required, title, *([page.shown.owner] if page.shown.owner else [])} - {*table.key}
    for column in table.columns:
        if column.name in wanted:
            yield {"name": column.name} | _field(page, column, people, shown)


def _field(
    page: Page, column: SourceColumn, people: People | None, shown: Mapping[Place, StreamTable]
) -> dict[str, object]:
    table = page.shown.table
    if column.name == page.shown.owner and (people is None or people.subject == people.key):
        return {"kind": "user"}
    reference = table.reference(column.name)
    if reference is not None:
        parent = shown.get(reference.place)
        if parent is not None:
            key = "id" if reference.target == parent.table.id_column else reference.target
            return {"kind": "parent", "table": parent.name, "column": key, "title": title_of(parent.table)}
        # of a table that devices do not have: what other rows name
        return {"kind": "parent", "table": page.shown.name, "column": column.name, "title": column.name}
    if choices := dict(table.choices).get(column.name):
        return {"kind": "choice", "choices": list(choices)}
    if column.type.startswith("timestamp"):
        return {"kind": "now"}
    if column.type == "date":
        return {"kind": "today"}
    if column.type == "boolean":
        return {"kind": "value", "value": 0}
    if column.kind is ValueKind.JSON:
        return {"kind": "value", "value": "[]" if column.type.endswith("[]") else "{}"}
    number = column.kind in {ValueKind.INTEGER, ValueKind.REAL} or column.type.startswith("numeric")
    return {"kind": "number" if number else "text"}
