"""Content ids, which identify the rows of tables without key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from headwater.decode.copytext import join_cells
from headwater.oplog.change import Cell
from headwater.oplog.row_id import content_id
from headwater.replication.tables.live import FullCells


def content_of(cells: Sequence[Cell] | None) -> str:
    """The content id of a complete row."""
    return content_id(join_cells(cast(FullCells, tuple(cells or ()))))
