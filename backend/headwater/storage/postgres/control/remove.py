"""Removes a store in Postgres."""

from __future__ import annotations

import contextlib
import re
from importlib import resources

import psycopg
from psycopg import sql

_MADE = re.compile(r"^create table (?:if not exists )?(\w+)", re.MULTILINE)
_NUMBERED = re.compile(r"rows_\d+|stage_\d+_\d+_\w+_(rows|lookups|buckets|segments)")


def remove(connection: psycopg.Connection, schema: str) -> None:
    """Remove the tables of a store that nobody uses, in one transaction, and its schema if that holds nothing else: it
    may be the schema of an application."""
    scripts = resources.files("headwater.storage.postgres").joinpath("migrations").iterdir()
    made = {name for script in scripts for name in _MADE.findall(script.read_text(encoding="utf-8"))}
    with connection.transaction():
        found = connection.execute("select tablename from pg_tables where schemaname = %s", [schema]).fetchall()
        for (name,) in found:
            if name in made or _NUMBERED.fullmatch(name):
                connection.execute(sql.SQL("drop table {} cascade").format(sql.Identifier(schema, name)))
        connection.execute(sql.SQL("drop function if exists {}()").format(sql.Identifier(schema, "refuse_write")))
        if schema != "public":
            with contextlib.suppress(psycopg.errors.DependentObjectsStillExist), connection.transaction():
                connection.execute(sql.SQL("drop schema if exists {}").format(sql.Identifier(schema)))
