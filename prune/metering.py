"""Metering: what heads of a model take of its parameters, operations and cache."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from headwise.analysis.errors import BadInput, first_line
from headwise.analysis.sites import Site
from headwise.prune.inputs import inputs_to_time
from headwise.prune.operations import operations, parameters
from headwise.prune.selection import Budget
from headwise.prune.selection.blocks import Block, Unit, blocks_of
from headwise.prune.selection.meters import Linear, gone
from headwise.prune.surgery import cut


class NeedsWeights(BadInput):
    """What is asked of a model without weights takes them."""


def meter_of(model: nn.Module, sites: Mapping[str, Site], budget: Budget, unit: Unit = "group") -> Linear | None:
    """The meter that a budget is counted with; None if it is counted in heads.

    Args:
        model: the model, dense or cut; also one without weights, on the meta device.
        sites: its sites.
        budget: what is to go.
        unit: what goes in one piece.

    Raises:
        BadInput: a cache budget for a model that keeps no cache, or single heads of shared groups.
        NeedsWeights: operations of a model without weights that asks for values in its forward pass.

    >>> from transformers import BertConfig, BertModel
    >>> from headwise.analysis.sites import find_sites
    >>> model = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
    ...     intermediate_size=8, vocab_size=9))
    >>> meter_of(model, find_sites(model), Budget(parameters=0.1)).per_head
    {'0': 140.0}
    """
    blocks = blocks_of(sites)
    if not budget.metered:
        return None
    if unit == "head" and any(block.sites[0].kv_heads < block.heads for block in blocks.values()):
        raise BadInput(
            f"remove: {budget.amount} cannot be counted with unit head where queries are grouped: unequal groups "
            "repeat keys and values; use unit group or even"
        )
    if budget.amount == "cache":
        return _cache(model, blocks, unit)
    per_head, per_group = _parameters(model, blocks)
    if budget.amount == "parameters":
        return _whole("parameters", float(parameters(model)), per_head, per_group, blocks)
    tokens = budget.length or 1
    for name, block in blocks.items():
        # Every weight is used once a token; scores and weighted values take two products more.
        calls, width = len(block.sites), block.sites[0].head_dim
        per_head[name] = calls * (2 * tokens * per_head[name] + 4 * tokens**2 * width)
        per_group[name] = calls * 2 * tokens * per_group[name]
    return _whole("operations", _operations(model, tokens), per_head, per_group, blocks)


def _operations(model: nn.Module, tokens: int) -> float:
    inputs = inputs_to_time(model, 1, tokens)
    if not next(model.parameters()).is_meta:
        return float(operations(model, inputs))
    # Whether a mask masks anything is asked of its values, which a model without weights has not.
    inputs.pop("attention_mask", None)
    try:
        return float(operations(model, inputs))
    except (RuntimeError, NotImplementedError) as error:
        raise NeedsWeights(
            f"remove: operations of {type(model).__name__} are counted by a forward pass, which takes its weights "
            f"({first_line(error)})"
        ) from error


def _whole(
    name: str, now: float, per_head: dict[str, float], per_group: dict[str, float], blocks: Mapping[str, Block]
) -> Linear:
    """The meter of the dense model: what the model takes now and what earlier cuts freed."""
    meter = Linear(name, now, per_head, per_group)
    return Linear(name, now + gone(meter, blocks), per_head, per_group)


def _cache(model: nn.Module, blocks: Mapping[str, Block], unit: Unit) -> Linear:
    if not getattr(getattr(model, "config", None), "is_decoder", False) and not _generates(model):
        raise BadInput(f"remove: {type(model).__name__} keeps no key/value cache; give heads, parameters or operations")
    if unit == "even" and any(block.sites[0].kv_heads < block.heads for block in blocks.values()):
        raise BadInput("remove: cache is freed by whole key/value groups; use unit group")
    per_group = {name: 2.0 * block.sites[0].head_dim * len(block.sites) for name, block in blocks.items()}
    total = sum(part * blocks[name].sites[0].kv_heads for name, part in per_group.items())
    return Linear("cache", total, dict.fromkeys(blocks, 0.0), per_group)


def _generates(model: nn.Module) -> bool:
    from headwise.prune.tasks.causal_lm import is_causal_lm

    return is_causal_lm(model) or bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _parameters(model: nn.Module, blocks: Mapping[str, Block]) -> tuple[dict[str, float], dict[str, float]]:
    """Parameters of a query head and of a key/value group, found out by cutting a copy without weights."""
    per_head, per_group = {}, {}
    known: dict[tuple[Any, ...], tuple[float, float]] = {}
    # What a head takes does not depend on how many there are: of blocks alike the fullest is cut.
    for block in sorted(blocks.values(), key=lambda block: -len(block.kept)):
        alike = shape_of(block)
        if not known.get(alike, (0.0, 0.0))[0]:
            known[alike] = _measured(model, block)
    for name, block in blocks.items():
        per_head[name], per_group[name] = known[shape_of(block)]
    return per_head, per_group


def shape_of(block: Block) -> tuple[Any, ...]:
    """What two blocks have in common whose heads take the same.

    >>> shape_of(Block((Site("0", "attn", "attn.o", 4, 2, 8),)))
    (4, 2, 8, 'self', '', 1)
    """
    site = block.sites[0]
    return site.heads, site.kv_heads, site.head_dim, site.kind, site.stack, len(block.sites)


def _measured(model: nn.Module, block: Block) -> tuple[float, float]:
    site = block.sites[0]
    if len(block.kept) < 2 or any(call.refusal for call in block.sites):
        return 0.0, 0.0
    groups: dict[int, list[int]] = {}
    for head in block.kept:
        groups.setdefault(site.group(head), []).append(head)
    first = next(iter(groups.values()))
    if len(first) < 2:
        return float(_lost(model, block, first)), 0.0
    # One head of every group: with unequal groups the cut repeats keys and values, which hides what a head takes.
    alone = _lost(model, block, [group[0] for group in groups.values()]) / len(groups)
    return alone, _lost(model, block, first) - alone * len(first) if len(groups) > 1 else 0.0


def _lost(model: nn.Module, block: Block, heads: list[int]) -> int:
    before = [head for head in range(block.heads) if head not in block.kept]
    twin = weightless(model)
    cut(twin, {site.name: sorted({*heads, *before}) for site in block.sites})
    return parameters(model) - parameters(twin)


def weightless(model: nn.Module) -> Any:
    """A copy of a model on the meta device: every shape, no weights, no memory.

    >>> weightless(nn.Linear(2, 3)).weight.device.type
    'meta'
    """
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo)
