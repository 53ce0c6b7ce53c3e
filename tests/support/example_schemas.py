"""Databases as people make them, for `headwater init`: in the manner of well-known ones, with rows of Ann and Bob."""

from __future__ import annotations

import subprocess
import sys
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


_SCRIPT = """
import django
from django.conf import settings
settings.configure(
    DATABASES={{"default": {{"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "PORT": {port},
                           "USER": "postgres", "NAME": "{name}"}}}},
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
                    "django.contrib.admin"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()
from django.core.management import call_command
from django.db import connection, models
call_command("migrate", verbosity=0)
class Notebook(models.Model):
    owner = models.ForeignKey("auth.User", models.CASCADE)
    name = models.TextField()
    shared_with = models.ManyToManyField("auth.User", related_name="+", db_table="app_notebook_members")
    class Meta:
        app_label = "app"
class Page(models.Model):
    notebook = models.ForeignKey(Notebook, models.CASCADE)
    text = models.TextField()
    class Meta:
        app_label = "app"
with connection.schema_editor() as editor:
    editor.create_model(Notebook)
    editor.create_model(Page)
from django.contrib.auth.models import User
ann, bob = User.objects.create_user("ann"), User.objects.create_user("bob")
for user in (ann, bob):
    book = Notebook.objects.create(owner=user, name=f"of {{user.username}}")
    Page.objects.create(notebook=book, text=f"of {{user.username}}")
"""


def make_django_tables(source: SourceDb) -> None:
    """The tables that Django itself makes, and those of an app with notebooks that users share, with the users `ann`
    (1) and `bob` (2), each with a notebook and a page in it."""
    script = _SCRIPT.format(port=source.server.port, name=source.name)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
