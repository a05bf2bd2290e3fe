"""Metering: what heads of a model take of its parameters, operations and cache, found out by cutting copies of it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from headwise.analysis.errors import BadInput, first_line
from headwise.analysis.sites import Site
from headwise.analysis.sites.projections import output_weight
from headwise.prune.selection import Budget
from headwise.prune.selection.blocks import Block, Unit, blocks_of
from headwise.prune.selection.meters import Linear, gone
from headwise.prune.speed.inputs import inputs_to_time
from headwise.prune.speed.operations import operations, parameters
from headwise.prune.surgery import cut
from headwise.prune.surgery.stacks import copied, opened
from headwise.prune.tasks.outcome import judging

Takes = Callable[[Mapping[str, Sequence[int]]], float | int]


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
        NeedsWeights: operations or cache of a model without weights that asks for values in its forward pass.

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
    grouped = any(block.sites[0].kv_heads < block.heads for block in blocks.values())
    if unit == "head" and grouped:
        raise BadInput(
            f"remove: {budget.amount} cannot be counted with unit head where queries are grouped: unequal groups "
            "repeat keys and values; use unit group or even"
        )
    takes = _takes(model, budget)
    now = takes({})
    if budget.amount == "cache" and not now:
        raise BadInput(f"remove: {type(model).__name__} keeps no key/value cache; give heads, parameters or operations")
    if budget.amount == "cache" and unit == "even" and grouped:
        raise BadInput("remove: cache is freed by whole key/value groups; use unit group")
    meter = _parts(model, blocks, takes, budget.amount, now)
    # The dense model takes what this one does and what earlier cuts freed.
    return replace(meter, total=now + gone(meter, blocks))


def share_gone(model: nn.Module, budget: Budget, heads: Mapping[str, Sequence[int]], total: float | int) -> float:
    """The share of what the dense model takes that is gone without these heads, counted on a cut copy.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=9))
    >>> round(share_gone(model, Budget(parameters=0.1), {"0": [1]}, parameters(model)) * parameters(model))
    140
    """
    return 1 - _takes(model, budget)(heads) / total


def _takes(model: nn.Module, budget: Budget) -> Takes:
    """From heads to what the model takes without them, counted on copies without weights where that is possible."""
    counts: dict[str, Callable[[nn.Module], float | int]] = {
        "parameters": parameters, "operations": partial(_operations, tokens=budget.length or 1), "cache": _cached,
    }  # fmt: skip
    count = counts[budget.amount]
    try:
        count(weightless(model))
    except Exception as error:
        # Whatever a foreign forward raises that asks a tensor for its values, it may run with weights.
        if next(model.parameters()).is_meta:
            raise NeedsWeights(
                f"remove: {budget.amount} of {type(model).__name__} are counted by a forward pass, which takes its "
                f"weights ({first_line(error)})"
            ) from error
        return lambda heads: count(sharing(model, heads))
    return lambda heads: count(cut(weightless(model), heads))


def _operations(model: nn.Module, tokens: int) -> float:
    return float(operations(model, _inputs(model, tokens)))


def _inputs(model: nn.Module, tokens: int) -> dict[str, Any]:
    inputs = inputs_to_time(model, 1, tokens)
    if next(model.parameters()).is_meta:
        # Whether a mask masks anything is asked of its values, which a model without weights has not.
        inputs.pop("attention_mask", None)
    return inputs


def _cached(model: nn.Module) -> float:
    """Keys and values that a model holds for a text which no window cuts off."""
    known = inspect.signature(model.forward).parameters.values()
    if not any(p.name == "use_cache" or p.kind is p.VAR_KEYWORD for p in known):
        return 0.0
    with judging(model):
        held = getattr(model(**{**_inputs(model, 2), "use_cache": True}), "past_key_values", None)
    caches = [getattr(held, name, None) for name in ("self_attention_cache", "cross_attention_cache")]
    layers = [layer for cache in (held, *caches) for layer in getattr(cache, "layers", ())]
    pairs = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in layers]
    return float(sum(part.numel() for pair in pairs for part in pair if isinstance(part, torch.Tensor)))


def _parts(model: nn.Module, blocks: Mapping[str, Block], takes: Takes, name: str, now: float | int) -> Linear:
    """The parts of a query head and of a key/value group, found out by cutting copies, and what first cuts bring in."""
    known: dict[tuple[Any, ...], tuple[float, float]] = {}
    alike = {n: (*shape_of(block), len(output_weight(model, block.sites[0]))) for n, block in blocks.items()}
    once = copied(model, blocks) if name == "parameters" else {}
    # What a head takes does not depend on how many there are: of blocks alike the fullest is cut.
    for each, block in sorted(blocks.items(), key=lambda item: -len(item[1].kept)):
        if alike[each] not in known and len(block.kept) > 1 and not any(call.refusal for call in block.sites):
            whole = not opened(model.get_submodule(block.sites[0].module))
            first = sum(part for names, part in once.items() if whole and each in names)
            known[alike[each]] = _measured(block, takes, now + first)
    parts = {each: known.get(alike[each], (0.0, 0.0)) for each in blocks}
    head, group = ({each: part[i] for each, part in parts.items()} for i in range(2))
    return Linear(name, now, head, group, once)


def _measured(block: Block, takes: Takes, now: float | int) -> tuple[float, float]:
    """The parts of a query head and of a key/value group; `now` is what the model takes with its first cut made."""
    groups: dict[int, list[int]] = {}
    for head in block.kept:
        groups.setdefault(block.sites[0].group(head), []).append(head)
    gone_already = [head for head in range(block.heads) if head not in block.kept]

    def lost(*heads: int) -> float:
        return float(now) - takes({site.name: sorted({*heads, *gone_already}) for site in block.sites})

    ours, *others = groups.values()
    if len(ours) < 2:
        return lost(*ours), 0.0
    # One head of every group: with unequal groups the cut repeats keys and values, which hides what a head takes.
    alone = lost(*(group[0] for group in groups.values())) / len(groups)
    return alone, lost(*ours) - alone * len(ours) if others else 0.0


def shape_of(block: Block) -> tuple[Any, ...]:
    """What two blocks have in common whose heads take the same.

    >>> shape_of(Block((Site("0", "attn", "attn.o", 4, 2, 8),)))
    (4, 2, 8, 'self', '', 1)
    """
    site = block.sites[0]
    return site.heads, site.kv_heads, site.head_dim, site.kind, site.stack, len(block.sites)


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


def sharing(model: nn.Module, remove: Mapping[str, Sequence[int]]) -> nn.Module:
    """A cut copy that shares every parameter whose shape the cut leaves alone.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=9))
    >>> smaller = sharing(model, {"0": [1]})
    >>> smaller.embeddings.word_embeddings.weight is model.embeddings.word_embeddings.weight
    True
    """
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    without: Any = cut(weightless(model), remove)
    after = {name: parameter.shape for name, parameter in without.named_parameters()}
    same = [p for name, p in model.named_parameters() if after.get(name) == shapes[name]]
    twin = copy.deepcopy(model, {id(parameter): parameter for parameter in same})
    smaller: nn.Module = cut(twin, remove)
    return smaller
