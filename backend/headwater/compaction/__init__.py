"""Compaction: makes the histories of buckets short, in the background or on command."""

from headwater.compaction.background import Upkeep as Upkeep
from headwater.compaction.work import LARGE_OPS as LARGE_OPS
from headwater.compaction.work import Elsewhere as Elsewhere
from headwater.compaction.work import Share as Share
from headwater.compaction.work import Summary as Summary
from headwater.compaction.work import UpkeepWork as UpkeepWork
from headwater.compaction.work import compact_share as compact_share
from headwater.compaction.work import selected as selected
from headwater.compaction.work import shared as shared
