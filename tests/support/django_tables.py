"""The tables that Django itself makes: those of its own apps, and those of an app with notebooks that users share."""

from __future__ import annotations

import subprocess
import sys

from tests.support.fix_postgres import SourceDb

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
    """Make them, with the users `ann` (1) and `bob` (2), each with a notebook and a page in it."""
    script = _SCRIPT.format(port=source.server.port, name=source.name)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
