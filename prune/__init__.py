"""Decides which heads go, cuts them, measures again, writes.

The names below are imported when they are first used, so that `headwise --help` loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.prune.checkpoint import load, save
    from headwise.prune.checkpoint.hub import push_to_hub
    from headwise.prune.pipeline import Run, run
    from headwise.prune.plan import Plan
    from headwise.prune.recipe import Recipe
    from headwise.prune.surgery import cut

_HOME = {
    "Plan": "plan", "Recipe": "recipe", "Run": "pipeline", "cut": "surgery", "load": "checkpoint",
    "push_to_hub": "checkpoint.hub", "run": "pipeline", "save": "checkpoint",
}  # fmt: skip
__all__ = ["Plan", "Recipe", "Run", "cut", "load", "push_to_hub", "run", "save"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"headwise.prune.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
