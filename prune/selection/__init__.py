"""Budgets and how they are met: from scores and keep-rules to the heads that go."""

from headwise.prune.selection.blocks import Block, Room, Unit, blocks_of
from headwise.prune.selection.budget import Budget
from headwise.prune.selection.costs import AdditiveCosts, BlockCost, Costs
from headwise.prune.selection.greedy import Scope, Step, greedy
from headwise.prune.selection.keep import Keep
from headwise.prune.selection.metered import largest_first, metered_reach, require_piece
from headwise.prune.selection.meters import Meter
from headwise.prune.selection.path import Path, walk
from headwise.prune.selection.reach import ladder, reachable, rooms_of
from headwise.prune.selection.searches import SEARCHES, Counts, Exchange, Greedy, Search
from headwise.prune.selection.select import Selection, select
from headwise.prune.selection.timed import Time, timed_reach

__all__ = [
    "SEARCHES",
    "AdditiveCosts",
    "Block",
    "BlockCost",
    "Budget",
    "Costs",
    "Counts",
    "Exchange",
    "Greedy",
    "Keep",
    "Meter",
    "Path",
    "Room",
    "Scope",
    "Search",
    "Selection",
    "Step",
    "Time",
    "Unit",
    "blocks_of",
    "greedy",
    "ladder",
    "largest_first",
    "metered_reach",
    "reachable",
    "require_piece",
    "rooms_of",
    "select",
    "timed_reach",
    "walk",
]
