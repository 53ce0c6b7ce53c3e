"""How much the store holds that tests of `headwater rules` use, and sync configs over its tables."""

from __future__ import annotations

LISTS, TODOS, USERS = 20, 400, 4

MEMBERS = "list_id IN (SELECT list_id FROM members WHERE user_id = auth.user_id())"

SERVED = f"""\
config:
  edition: 3
streams:
  lists:
    auto_subscribe: true
    query: SELECT * FROM lists WHERE owner = auth.user_id()
  todos:
    auto_subscribe: true
    query: SELECT * FROM todos WHERE {MEMBERS}
"""
REQUEST_EDITED = SERVED.replace("WHERE user_id", "WHERE active AND user_id")
PROJECTION_EDITED = SERVED.replace("SELECT * FROM todos", "SELECT id, title FROM todos")
STREAM_ADDED = (
    SERVED
    + f"""\
  one:
    priority: 1
    query: SELECT id FROM todos WHERE list_id = subscription.parameter('list') AND {MEMBERS}
"""
)
TABLE_ADDED = (
    SERVED
    + """\
  notes:
    auto_subscribe: true
    query: SELECT * FROM notes
"""
)
WRONG = SERVED.replace("auth.user_id()", "auth.user_di()")
