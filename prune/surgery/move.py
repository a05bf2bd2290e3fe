"""Moves: from one decision to the next, in the terms that slicing needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from headwise.analysis.sites.anatomy import Anatomy
from headwise.prune.surgery.decision import Decision
from headwise.prune.surgery.edits import Edit, Runs, assign, length, take


@dataclass(frozen=True)
class Move:
    """From one decision to the next, in the terms that slicing needs."""

    model: nn.Module
    module: nn.Module
    path: str
    anatomy: Anatomy
    head_dim: int
    now: Decision
    then: Decision

    @property
    def query(self) -> list[int]:
        """Positions of the kept query heads among the present ones."""
        return [self.now.present.index(head) for head in self.then.present]

    @property
    def kv(self) -> list[int]:
        """Positions of the kept key/value heads among the present ones; may repeat."""
        return [self.now.kv.index(head) for head in self.then.kv]

    def positions(self, keys: bool) -> tuple[list[int], int]:
        """Kept positions and how many there are now, of query or key/value heads."""
        return (self.kv, len(self.now.kv)) if keys else (self.query, len(self.now.present))


def linear(model: nn.Module, path: str, kept: Runs, axis: int) -> Iterator[Edit]:
    """The edits that keep runs of a linear map's outputs (axis 0) or inputs (axis 1), sizes included.

    Conv1D stores its weight the other way round and calls its sizes `nf` and `nx`.
    """
    module = model.get_submodule(path)
    turned = type(module).__name__ == "Conv1D"
    of = features(module, axis)
    yield take(path, "weight", 1 - axis if turned else axis, of, kept)
    if axis == 0 and getattr(module, "bias", None) is not None:
        yield take(path, "bias", 0, of, kept)
    for name in ("nf", "out_features") if axis == 0 else ("nx", "in_features"):
        if hasattr(module, name):
            yield assign(path, name, length(kept))


def features(module: Any, axis: int) -> int:
    """How many outputs (axis 0) or inputs (axis 1) a linear map has, whichever way it stores its weight."""
    size: int = module.weight.shape[1 - axis if type(module).__name__ == "Conv1D" else axis]
    return size
