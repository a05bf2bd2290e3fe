"""Edits: what a cut does to a model, as data.

Each edit is a plain dictionary with `edit` (its kind) and `module` (a path counted from the base model).
`replay.py` applies them, here and where a checkpoint is loaded. Kinds:

========  ==========================================================================================
take      keep runs of entries of a tensor along an axis: `tensor, axis, of, runs`
zero      fill a tensor with zeros (a ghost head's output columns): `tensor`
set       set an attribute: `name, value`
copy      put a copy of another submodule under a name: `from, name`
children  keep, in this order, some modules of a list: `name, keep`
argument  keep the heads of a forward argument along an axis, or drop it (no axis): `argument, axis, heads, keep`
output    keep runs of the last axis of the module's output: `runs`
config    show the module other numbers in its configuration: `values`
distances let blocks that each compute the position bias now (T5) do so by distance
replace   let `nn.MultiheadAttention` run with heads that do not fill the embedding
========  ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Edit = dict[str, Any]
Runs = list[list[int]]


def runs(indices: Iterable[int], width: int = 1) -> Runs:
    """Blocks of `width` entries at the given block indices, neighbours joined.

    >>> runs([0, 1, 3], width=8)
    [[0, 16], [24, 32]]
    """
    joined: Runs = []
    for index in indices:
        start, stop = index * width, (index + 1) * width
        if joined and joined[-1][1] == start:
            joined[-1][1] = stop
        else:
            joined.append([start, stop])
    return joined


def shifted(blocks: Runs, by: int) -> Runs:
    """The same runs, further along the axis.

    >>> shifted([[0, 8]], 32)
    [[32, 40]]
    """
    return [[start + by, stop + by] for start, stop in blocks]


def length(blocks: Runs) -> int:
    """How many entries the runs hold.

    >>> length([[0, 16], [24, 32]])
    24
    """
    return sum(stop - start for start, stop in blocks)


def take(module: str, tensor: str, axis: int, of: int, blocks: Runs) -> Edit:
    """Keep runs of entries of one tensor."""
    return {"edit": "take", "module": module, "tensor": tensor, "axis": axis, "of": of, "runs": blocks}


def assign(module: str, name: str, value: int | Sequence[int]) -> Edit:
    """Set an attribute."""
    return {"edit": "set", "module": module, "name": name, "value": value}
