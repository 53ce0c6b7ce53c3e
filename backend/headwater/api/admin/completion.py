"""What editors of sync configs ask for: the words that may be written, and schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files

import msgspec
from msgspec import Struct

from headwater.api.admin.route import NOTHING_SERVED, AdminSettings
from headwater.api.admin.versions import compiled, in_state
from headwater.api.admin.warm import WarmSchema
from headwater.api.errors import ApiError
from headwater.storage.contract.versions import VersionState
from headwater_rules.describe.client_schema import client_schema, schema_code
from headwater_rules.describe.vocabulary import FUNCTIONS, KEYWORDS, PARAMETERS, ROW_FUNCTIONS, Word
from headwater_rules.plan import COMPUTED
from headwater_rules.propose.sql import identifier
from headwater_rules.schema import Language, SourceSchema, SourceTable


class CompletionColumn(Struct, frozen=True):
    """A column, by its `name` in a rule: its type in Postgres, and what its values are in rules: integer, real, text,
    json or blob. One that is not `sent` is left out by the publication."""

    name: str
    type: str
    values: str
    sent: bool


class CompletionTable(Struct, frozen=True):
    """What a query may read, by the `name` that it has there. `source` is the tag. `kind` is `table` or `computed`; or
    else what can't be read, such as `a view`. `lacks` are the statements without which no row of it is replicated."""

    name: str
    schema: str
    source: str
    kind: str
    columns: tuple[CompletionColumn, ...]
    lacks: tuple[str, ...] = ()


class CompletionResponse(Struct, frozen=True):
    """The words of rules: tables as they were seen at `seen` (null: no source answers, and `note` says why), functions,
    functions of a row, values of the request, and keywords."""

    tables: tuple[CompletionTable, ...]
    functions: tuple[Word, ...]
    row_functions: tuple[Word, ...]
    parameters: tuple[Word, ...]
    keywords: tuple[str, ...]
    seen: float | None
    note: str


class ClientSchemaRequest(Struct, frozen=True):
    """A language of the client SDKs; `dart` for Flutter, `js` or `ts` for JavaScript."""

    language: str = "ts"


class ClientSchemaResponse(Struct, frozen=True):
    """The schema as code. `note` says whether types are those of the source's tables, and as of when."""

    language: str
    text: str
    note: str


class CompletionHandler:
    """Answers editors. Reads the sources' tables through `warm`."""

    def __init__(self, settings: AdminSettings, warm: WarmSchema) -> None:
        self._settings = settings
        self._warm = warm

    def completion(self) -> CompletionResponse:
        """List what may be written in a rule: tables with their columns, functions, values of the request, keywords."""
        seen = self._warm.tables(self._served() or "")
        schema = seen.found.schema
        return CompletionResponse(
            () if schema is None else tuple(_tables(schema)),
            FUNCTIONS,
            ROW_FUNCTIONS,
            PARAMETERS,
            KEYWORDS,
            None if schema is None else seen.at,
            seen.found.note,
        )

    def client_schema(self, request: ClientSchemaRequest) -> ClientSchemaResponse:
        """Write the client schema of the served sync config in a language."""
        language = _language(request.language)
        text = self._served()
        if text is None:
            raise ApiError("no sync config is served yet", fix="deploy one", code=NOTHING_SERVED)
        seen = self._warm.tables(text).found
        return ClientSchemaResponse(
            language.value, schema_code(client_schema(compiled(text).plan, seen.schema), language), seen.note
        )

    def config_schema(self) -> Mapping[str, object]:
        """Give the JSON Schema of sync configs, for editors of YAML."""
        written = files("headwater_rules").joinpath("sync-config.schema.json").read_bytes()
        return msgspec.json.decode(written, type=dict[str, object])

    def _served(self) -> str | None:
        with self._settings.store() as store:
            version = in_state(store, VersionState.ACTIVE)
        return None if version is None else version.yaml


_ALSO = {"js": Language.TS, "javascript": Language.TS, "typescript": Language.TS, "flutter": Language.DART}


def _language(name: str) -> Language:
    named = name.strip().lower()
    found = _ALSO.get(named) or next((each for each in Language if each.value == named), None)
    if found is None:
        known = ", ".join(each.value for each in Language)
        raise ApiError(f"there is no language {name}"[:200], fix=f"name one of: {known}", code="HW_6201")
    return found


def _tables(schema: SourceSchema) -> Iterator[CompletionTable]:
    for table in schema.tables:
        kind = "computed" if table.schema == COMPUTED else "table"
        sent = table.sent
        columns = tuple(
            CompletionColumn(identifier(each.name), each.type, each.kind.value, each.name in sent)
            for each in table.columns
        )
        yield CompletionTable(_name(table), table.schema, table.tag, kind, columns, table.lacks)
    for other in schema.not_streamed:
        table = SourceTable(other.tag, other.schema, other.name, ())
        yield CompletionTable(_name(table), other.schema, other.tag, other.form, ())


def _name(table: SourceTable) -> str:
    """The table as a rule names it, quoted where that is needed."""
    parts = [table.tag, table.schema, table.name]
    if table.schema == COMPUTED:
        parts = parts[2:]
    elif table.tag == "default":
        parts = parts[2 if table.schema == "public" else 1 :]
    return ".".join(map(identifier, parts))
