"""Explains which rows a user's devices are sent, and why."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.api.admin.asking import Client, Text, request_of
from headwater.api.admin.errors import NothingServedError
from headwater.api.admin.settings import AdminSettings
from headwater.api.admin.work import Patience
from headwater.insight.explain_row import RowExplained, explain_row
from headwater.insight.explain_user import UserExplained, explain_user
from headwater.insight.rows import CurrentRows
from headwater.insight.served import Limits, NothingServedYetError
from headwater.storage.contract.reader import StoreReader


@dataclass(frozen=True, slots=True)
class ExplainUser:
    """A client, as an operator describes it."""

    client: Client


@dataclass(frozen=True, slots=True)
class ExplainRow:
    """A client and a row. `table` is the table's name on devices, or its schema and name in the source; `id` is the
    row's id there."""

    client: Client
    table: Text
    id: Text


class ExplainDesk:
    """Explains rows and users from what the store really sends to devices."""

    def __init__(self, settings: AdminSettings, reader: StoreReader) -> None:
        self._settings = settings
        self._reader = reader
        self._limits = Limits(settings.max_buckets, settings.max_results)

    def user(self, asked: ExplainUser) -> UserExplained:
        """Explain what a user's devices are sent now: buckets, rows, bytes, and why."""
        patience = Patience("headwater explain user")
        try:
            return explain_user(self._reader, request_of(asked.client), self._limits, patience.check)
        except NothingServedYetError:
            raise _nothing() from None

    def row(self, asked: ExplainRow) -> RowExplained:
        """Explain whether a user's devices have a row, by which bucket and since when, or which condition fails."""
        patience = Patience("headwater explain row")
        request = request_of(asked.client)
        with self._settings.store() as store:
            current = CurrentRows(store, self._settings.source, patience.watch, check=patience.check)
            try:
                return explain_row(self._reader, current, request, asked.table, asked.id, self._limits)
            except NothingServedYetError:
                raise _nothing() from None


def _nothing() -> NothingServedError:
    return NothingServedError("no sync config is served yet", fix="deploy one, or wait for its first snapshot to end")
