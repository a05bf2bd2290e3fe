"""Attention blocks alone: where no synthetic input fits a whole model, its blocks are called one by one."""

from __future__ import annotations

import copy
from typing import Any

import torch
from oracle import oracle
from torch import nn

from headwise.analysis.gates import gated
from headwise.analysis.gates.block_inputs import block_path
from headwise.analysis.sites import Site, find_sites
from headwise.analysis.sites.anatomy import Anatomy, dissect
from headwise.prune.surgery import cut


def blocks(model: nn.Module) -> dict[str, tuple[Site, Anatomy]]:
    """One site for each class of attention module."""
    anatomies = {anatomy.module: anatomy for anatomy in dissect(model)}
    found: dict[str, tuple[Site, Anatomy]] = {}
    for site in find_sites(model).values():
        kind = type(model.get_submodule(site.module)).__name__
        if site.heads > 1:
            found.setdefault(kind, (site, anatomies[site.module]))
    return found


def called(model: nn.Module, site: Site, inputs: dict[str, Any]) -> torch.Tensor:
    """A block's output for given inputs: the first, since maps that come along lose heads as they should."""
    torch.manual_seed(0)
    with torch.no_grad():
        output = model.get_submodule(block_path(site))(**copy.deepcopy(inputs))
    return (output if isinstance(output, torch.Tensor) else output[0]).double()


def measure(model: nn.Module, site: Site, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The outputs of one block as the oracle, the gate and the cut give them, with half of its heads gone."""
    remove = {site.name: list(range(0, site.heads, 2))}
    with gated(model, remove):
        gate = called(model, site, inputs)
    want = called(oracle(model, find_sites(model), remove), site, inputs)
    return want, gate, called(cut(copy.deepcopy(model), remove), site, inputs)
