"""Keeping histories short, by itself in the background or on command."""

from headwater.upkeep.background import Upkeep as Upkeep
from headwater.upkeep.work import LARGE_OPS as LARGE_OPS
from headwater.upkeep.work import Elsewhere as Elsewhere
from headwater.upkeep.work import Share as Share
from headwater.upkeep.work import Summary as Summary
from headwater.upkeep.work import UpkeepWork as UpkeepWork
from headwater.upkeep.work import compact_share as compact_share
from headwater.upkeep.work import selected as selected
from headwater.upkeep.work import shared as shared
