"""Patches of an image: which rows and columns of a map stand where in the picture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

#: Learned tokens that stand before the patches.
_BEFORE = frozenset({"cls_token", "class_embedding", "class_token", "distillation_token", "register_tokens"})


@dataclass(frozen=True)
class Grid:
    """An image as a tower of a model sees it: some learned tokens, then its patches, row by row.

    Attributes:
        before: tokens that are no patches (class, distillation, registers).
        rows: of patches.
        columns: of patches.
    """

    before: int
    rows: int
    columns: int

    @property
    def patches(self) -> int:
        """How many patches there are.

        >>> Grid(before=1, rows=2, columns=3).patches
        6
        """
        return self.rows * self.columns

    @cached_property
    def places(self) -> tuple[Int[Tensor, " token"], Int[Tensor, " token"]]:
        """Row and column of every token; far away, and each from the other, where it is no patch.

        >>> Grid(before=1, rows=1, columns=2).places[1].tolist()
        [-1000000, 0, 1]
        """
        far = -1_000_000 * torch.arange(1, self.before + 1)
        patch = torch.arange(self.patches)
        return torch.cat([far, patch // self.columns]), torch.cat([far, patch % self.columns])


def grid_of(model: nn.Module, path: str, pixels: Any, tokens: int) -> Grid | None:
    """How the tokens of an attention module lie in the image; None where that cannot be told.

    The patches must be those of the image in reading order: as many as its sides hold, after as many learned
    tokens as the tower has. Towers that merge, drop or shuffle patches, clips of several frames and images of
    which only the patches were handed in do not say where a token lies.

    Args:
        model: the model.
        path: of the attention module.
        pixels: what it was given as `pixel_values`.
        tokens: how many the map has.

    >>> grid_of(nn.Linear(1, 1), "", None, 5) is None
    True
    """
    size = _patch(model, path)
    if not isinstance(pixels, Tensor) or pixels.dim() != 4 or size is None:
        return None
    rows, columns = pixels.shape[2] // size[0], pixels.shape[3] // size[1]
    grid = Grid(_learned(model, path), rows, columns)
    return grid if grid.patches and grid.before + grid.patches == tokens else None


def _patch(model: nn.Module, path: str) -> tuple[int, int] | None:
    """Height and width of a patch, from the config nearest to the module."""
    parts = path.split(".") if path else []
    around = [model.get_submodule(".".join(parts[:depth])) for depth in range(len(parts), -1, -1)]
    configs = [config for module in around if (config := getattr(module, "config", None)) is not None]
    for config in (*configs, *(getattr(config, "vision_config", None) for config in configs)):
        size = getattr(config, "patch_size", None)
        if isinstance(size, int):
            return size, size
        if isinstance(size, list | tuple) and len(size) == 2:
            return int(size[0]), int(size[1])
    return None


def _learned(model: nn.Module, path: str) -> int:
    """Learned tokens of the tower that the module is in."""
    mine = path.split(".")

    def shared(name: str) -> int:
        same = (one == other for one, other in zip(name.split("."), mine, strict=False))
        return next((i for i, equal in enumerate(same) if not equal), len(mine))

    found = [(shared(name), p) for name, p in model.named_parameters() if name.rpartition(".")[2] in _BEFORE]
    nearest = max((depth for depth, _ in found), default=0)
    return sum(p.shape[-2] if p.dim() > 1 else 1 for depth, p in found if depth == nearest)
