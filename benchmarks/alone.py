"""Attention blocks alone: where no synthetic input fits a whole model, its blocks are called one by one."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from headwise.analysis.anatomy import Anatomy, dissect
from headwise.analysis.gates import gated
from headwise.analysis.sites import Site, find_sites
from headwise.analysis.synthetic import main_output

TOKENS = 12


def blocks(model: nn.Module) -> dict[str, tuple[Site, Anatomy]]:
    """One site for each class of attention module whose output projection is its own."""
    anatomies = {anatomy.module: anatomy for anatomy in dissect(model)}
    found: dict[str, tuple[Site, Anatomy]] = {}
    for site in find_sites(model).values():
        kind = type(model.get_submodule(site.module)).__name__
        if site.output.startswith(f"{site.module}.") and site.heads > 1:
            found.setdefault(kind, (site, anatomies[site.module]))
    return found


def called(module: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    """A block's output for given inputs, flattened."""
    torch.manual_seed(0)
    with torch.no_grad():
        return main_output(module(**copy.deepcopy(inputs)))


def fitting(module: Any, site: Site, anatomy: Anatomy) -> dict[str, Any] | None:
    """Inputs that a block runs with, or None."""
    for inputs in _candidates(module, site, anatomy):
        try:
            if torch.isfinite(called(module, inputs)).all():
                return inputs
        except Exception:
            continue  # another shape may do
    return None


def measure(
    model: nn.Module, site: Site, inputs: dict[str, Any], oracle: Callable[..., Any], cut: Callable[..., Any]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The outputs of one block as the oracle, the gate and the cut give them, with half of its heads gone."""
    remove = {site.name: list(range(0, site.heads, 2))}
    with gated(model, remove):
        gate = called(model.get_submodule(site.module), inputs)
    want = called(oracle(model, find_sites(model), remove).get_submodule(site.module), inputs)
    smaller = cut(copy.deepcopy(model), remove)
    return want, gate, called(smaller.get_submodule(site.module), inputs)


def _candidates(module: Any, site: Site, anatomy: Anatomy) -> Iterator[dict[str, Any]]:
    """Inputs to try: batched or packed hidden states, with rotary angles of three widths or none."""
    parameters = inspect.signature(module.forward).parameters
    names = [n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    required = [n for n in names if parameters[n].default is inspect.Parameter.empty]
    width, other = _widths(module, anatomy)
    rotary = getattr(module, "head_dim", site.head_dim)
    dtype = next(module.parameters()).dtype
    draw = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).to(dtype)

    def value(name: str, place: tuple[int, ...], turned: int) -> Any:
        if name == names[0]:
            return noise(*place, width)
        if "position_emb" in name and turned:
            angle = noise(*place, turned)
            return angle.cos(), angle.sin()
        if name == "cu_seqlens":
            return torch.tensor([0, TOKENS], dtype=torch.int32)
        return None if "mask" in name or name not in required else noise(2, TOKENS, other)

    for place in ((2, TOKENS), (TOKENS,)):
        for turned in (rotary, rotary // 2, 0):
            inputs = {name: value(name, place, turned) for name in names}
            inputs = {name: given for name, given in inputs.items() if given is not None or name in required}
            yield inputs
            for name in ("encoder_hidden_states", "key_value_states", "current_states"):
                if name in names:
                    yield {**inputs, name: noise(2, TOKENS, other)}


def _widths(module: Any, anatomy: Anatomy) -> tuple[int, int]:
    """Input features of the queries, and of the keys."""
    found = []
    for name in (anatomy.query or anatomy.fused, anatomy.key or anatomy.query or anatomy.fused):
        part = (
            module.get_submodule(name) if not anatomy.bare and not isinstance(module, nn.MultiheadAttention) else None
        )
        found.append(
            part.weight.shape[1] if part is not None else module.embed_dim if hasattr(module, "embed_dim") else 32
        )
    return found[0], found[1]
