"""Undo: repair writes into a model's output and value projections; this gives them back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from headwise.analysis.sites import Site


@contextlib.contextmanager
def given_back(model: nn.Module, sites: Mapping[str, Site]) -> Iterator[None]:
    """Give a model its output and value projections back, bit for bit, when the block ends.

    >>> from headwise.analysis.sites import Site
    >>> model = nn.ModuleDict({"o": nn.Linear(2, 2)})
    >>> before = model["o"].weight.clone()
    >>> with given_back(model, {"0": Site("0", "", "o", 1, 1, 2)}), torch.no_grad():
    ...     _ = model["o"].weight.zero_()
    >>> bool((model["o"].weight == before).all())
    True
    """
    from headwise.prune.compensation.values import value_linears

    kept = [(module.weight, module.weight.detach().clone()) for module in value_linears(model, sites).values()]
    for path in {site.output.partition(":")[0] for site in sites.values()}:
        kept += [(p, p.detach().clone()) for p in model.get_submodule(path).parameters(recurse=False)]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, before in kept:
                parameter.copy_(before)
