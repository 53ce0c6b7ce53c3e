"""Databases as people make them, for `headwater init`: in the manner of well-known ones, with rows of Ann and Bob."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.support.fix_postgres import SourceDb

GIVEN: Final = {
    "pagila": {"customer", "rental", "payment"},
    "supabase": {"profiles", "teams", "team_members", "todos", "documents", "document_versions"},
    "rails": {"users", "sessions", "memberships", "projects", "tasks", "comments", "likes", "order",
              "task_labels"},
    "keyless": {"users", "lists", "list_items", "attachments"},
    "prisma": {"Technician", "Session", "Job", "JobNote", "JobSkill"},
    "recipes": {"members", "recipes", "recipe_ingredients", "cookbooks", "favorites"},
    "django": {"auth_user", "shop_profile", "shop_cart", "shop_cartitem", "shop_review"},
}  # fmt: skip
"""The tables of which a proposal gives rows to their users, by schema."""

_UUID = "00000000-0000-4000-8000-00000000000"
USERS: Final = dict.fromkeys(GIVEN, ("1", "2")) | {
    "supabase": (f"{_UUID}1", f"{_UUID}2"),
    "prisma": ("cltech1", "cltech2"),
}
"""What tokens call Ann and Bob."""

NAMED: Final = {"pagila": "customer"}
"""The tables of users that have to be named, as something else speaks for another: the staff logs in there."""


def make_example(source: SourceDb, name: str) -> None:
    """Make the tables and rows of one of them."""
    source.execute((Path(__file__).parent / "schemas" / f"{name}.sql").read_text())
