"""Inputs for one attention block by itself, where nothing synthetic runs the model around it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.analysis.gates.synthetic import TOKENS, main_output
from headwise.analysis.sites import Site
from headwise.analysis.sites.anatomy import Anatomy, is_linear, widths


def block_path(site: Site) -> str:
    """The smallest module that holds a site's projections, the output projection included.

    >>> block_path(Site("0", "layer.0.attention.self", "layer.0.attention.output.dense", 2, 2, 8))
    'layer.0.attention'
    """
    module, output = site.module.split("."), site.output.partition(":")[0].split(".")
    shared = next((i for i, (a, b) in enumerate(zip(module, output, strict=False)) if a != b), len(module))
    return ".".join(module[:shared])


def block_inputs(model: nn.Module, site: Site, anatomy: Anatomy) -> dict[str, Any] | None:
    """Keyword arguments that a site's block runs with, or None.

    They mean nothing: hidden states, rotary angles and, for cross-attention, states to attend to, all at random.

    >>> from transformers import BertConfig, BertModel
    >>> from headwise.analysis.sites.anatomy import dissect
    >>> from headwise.analysis.sites import find_sites
    >>> model = BertModel(BertConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=16)).eval()
    >>> block_inputs(model, find_sites(model)["0"], next(dissect(model)))["hidden_states"].shape
    torch.Size([2, 12, 16])
    """
    block: Any = model.get_submodule(block_path(site))
    for inputs in _candidates(block, model.get_submodule(site.module), site, anatomy):
        try:
            with torch.no_grad():
                output = block(**copy.deepcopy(inputs))
            if torch.isfinite(main_output(output)).all():
                return inputs
        except Exception:
            continue  # whatever a foreign forward raises, other inputs may suit it
    return None


def _candidates(block: Any, module: Any, site: Site, anatomy: Anatomy) -> Iterator[dict[str, Any]]:
    """Inputs to try: hidden states, packed where sequences are, with rotary angles of three widths or none."""
    parameters = inspect.signature(block.forward).parameters
    names = [n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if not names:
        return
    required = [n for n in names if parameters[n].default is inspect.Parameter.empty]
    width, other = _widths(module, anatomy)
    rotary = getattr(module, "head_dim", site.head_dim)
    parameter = next(block.parameters())
    draw = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(parameter)

    def value(name: str, place: tuple[int, ...], angles: tuple[int, ...]) -> Any:
        if name == names[0]:
            return noise(*place, width)
        if "position_emb" in name and angles:
            angle = noise(*angles)
            return angle.cos(), angle.sin()
        if name == "cu_seqlens":
            return torch.tensor([0, TOKENS], dtype=torch.int32, device=parameter.device)
        return None if "mask" in name or name not in required else noise(2, TOKENS, other)

    # Without the bounds of sequences a forward takes the first axis for the batch: packed states would mix heads.
    place = (TOKENS,) if "cu_seqlens" in names else (2, TOKENS)
    # A few models turn by head instead of by place.
    by_place = [(*place, turned) for turned in (rotary, rotary // 2)]
    for angles in (*by_place, (1, site.heads, rotary), ()):
        inputs = {name: value(name, place, angles) for name in names}
        inputs = {name: given for name, given in inputs.items() if given is not None or name in required}
        yield inputs
        for name in ("encoder_hidden_states", "key_value_states", "current_states"):
            if name in names:
                yield {**inputs, name: noise(2, TOKENS, other)}


def _widths(module: Any, anatomy: Anatomy) -> tuple[int, int]:
    """Input features of the queries, and of the keys."""
    found = []
    for name in (anatomy.query or anatomy.fused, anatomy.key or anatomy.query or anatomy.fused):
        part = None if anatomy.bare or isinstance(module, nn.MultiheadAttention) else module.get_submodule(name)
        known = part is not None and is_linear(part)
        found.append(widths(part)[0] if known else int(getattr(module, "embed_dim", 32)))
    return found[0], found[1]
