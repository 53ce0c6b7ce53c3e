"""`upload`: what a config says of writes, with what would leave something open refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.config.document import ConfigError
from headwater.source.upload.settings import Conflict, Operation, TableRule
from tests.unit.config.configs import MINIMAL, load, mistakes


def test_without_it_nothing_may_be_written(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL)
    assert config.upload is None
    with pytest.raises(ConfigError, match="uploads are not configured"):
        config.uploads()


def test_table_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL + "upload: {role: app_user, tables: {todos: }}")
    upload = config.uploads()
    assert (upload.role, upload.login) == ("app_user", config.source())
    assert upload.tables == {"todos": TableRule("public", "todos")}
    assert upload.search_path == ("public",)
    assert config.warnings == ()


def test_every_key_is_read(tmp_path: Path) -> None:
    upload = load(
        tmp_path,
        MINIMAL
        + """
upload:
  role: app_user
  username: writer
  password: hush
  search_path: [app, public]
  statement_timeout_seconds: 20
  lock_timeout_seconds: 2
  max_connections: 3
  max_waiting: 4
  max_per_user: 5
  max_parked_per_user: 50
  max_parked_mb_per_user: 7
  max_devices_per_user: 70
  max_body_mb: 6
  keep_days: 30
  park_after_hours: 3
  tables:
    todos:
      table: app.items
      columns: [title, done]
      operations: [insert, update]
      conflict: reject_changed
      key: [tenant, number]
      key_separator: ":"
      when_gone: skip
      zero_rows: accept
      unknown_columns: {map: {note: body}, others: drop}
      null_when_absent: [done]
      row_security: false
      compare: [version]
    jots:
      conflict: {function: app.merge}
      unknown_columns: {map: {note: body}}
    logs: {unknown_columns: drop}
""",
    ).uploads()
    assert (upload.login.user, upload.login.password, upload.login.host) == ("writer", "hush", "db.example")
    assert "hush" not in repr(upload)
    assert (upload.search_path, upload.statement_timeout, upload.lock_timeout) == (("app", "public"), 20, 2)
    assert (upload.max_connections, upload.max_waiting, upload.max_per_user) == (3, 4, 5)
    assert (upload.max_body_bytes, upload.keep_days, upload.max_parked_per_user) == (6 << 20, 30, 50)
    assert (upload.max_parked_bytes_per_user, upload.max_devices_per_user) == (7 << 20, 70)
    assert upload.park_after_hours == 3
    assert upload.tables == {
        "todos": TableRule(
            "app",
            "items",
            frozenset({"title", "done"}),
            frozenset({Operation.INSERT, Operation.UPDATE}),
            Conflict.REJECT_CHANGED,
            key=("tenant", "number"),
            separator=":",
            skip_gone=True,
            row_security=False,
            compare=frozenset({"version"}),
            accept_zero_rows=True,
            drop_unknown=True,
            renamed=(("note", "body"),),
            null_when_absent=frozenset({"done"}),
        ),
        "jots": TableRule(
            "public", "jots", conflict=Conflict.FUNCTION, function=("app", "merge"), renamed=(("note", "body"),)
        ),
        "logs": TableRule("public", "logs", drop_unknown=True),
    }


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{}", "no role is given"),
        ("{role: a}", "no table is allowed"),
        ("{role: a, tables: [todos]}", "upload.tables: must be a mapping"),
        ("{role: a, tables: {t: 5}}", "upload.tables.t: must be a mapping"),
        ("{role: a, tables: {t: {column: [x]}}}", "upload.tables.t.column: unknown key; did you mean columns?"),
        ("{role: a, rolle: b, tables: {t: {}}}", "upload.rolle: unknown key"),
        ("{role: a, tables: {t: {operations: [insert, upsert]}}}", "must name some of insert, update, delete"),
        ("{role: a, tables: {t: {operations: []}}}", "must name some of"),
        ("{role: a, tables: {t: {conflict: first}}}", "must be one of last_write_wins, reject_changed"),
        ("{role: a, tables: {t: {conflict: {function: merge}}}}", "must name a function with its schema"),
        ("{role: a, tables: {t: {when_gone: ignore}}}", "must be one of park, skip"),
        ("{role: a, tables: {t: {zero_rows: ignore}}}", "must be one of look, accept"),
        ("{role: a, tables: {t: {unknown_columns: ignore}}}", "must be one of refuse, drop"),
        ("{role: a, tables: {t: {unknown_columns: {note: body}}}}", "unknown_columns.note: unknown key"),
        ("{role: a, password: x, tables: {t: {}}}", "is given without a username"),
        ("{role: a, tables: {t: {}}, max_body_mb: 0}", "must be a number from 1 to 1024"),
    ],
)
def test_mistakes_of_upload(tmp_path: Path, section: str, said: str) -> None:
    assert said in mistakes(tmp_path, f"{MINIMAL}upload: {section}")
