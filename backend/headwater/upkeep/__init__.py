"""Keeping histories short, by itself in the background or on command."""

from headwater.upkeep.background import Upkeep as Upkeep
from headwater.upkeep.work import Summary as Summary
from headwater.upkeep.work import UpkeepWork as UpkeepWork
from headwater.upkeep.work import selected as selected
