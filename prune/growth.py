"""Growth: single heads taken out of groups can make a model larger, and that is said before it is cut."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from torch import nn

from headwise.analysis.errors import named
from headwise.analysis.sites import Site
from headwise.prune.speed.generation import generates
from headwise.prune.speed.metering import weightless
from headwise.prune.speed.operations import parameters
from headwise.prune.surgery import cut, decisions_of
from headwise.prune.surgery.decision import decide

log = logging.getLogger("headwise")

_NAMED = 4


def growth(model: nn.Module, sites: Mapping[str, Site], remove: Mapping[str, Sequence[int]]) -> str:
    """What a removal makes larger although heads go, in a sentence with its numbers; "" if nothing.

    Groups that are left with unequal numbers of query heads have their keys and values repeated, which can take more
    than the heads gave free.

    >>> from transformers import LlamaConfig, LlamaModel
    >>> from headwise.analysis.sites import find_sites
    >>> model = LlamaModel(LlamaConfig(hidden_size=12, num_hidden_layers=1, num_attention_heads=6,
    ...     num_key_value_heads=2, intermediate_size=8, vocab_size=9))
    >>> growth(model, find_sites(model), {"0": [0, 1, 2]})
    ''
    >>> growth(model, find_sites(model), {"0": [1]})[:67]
    'groups of unequal size are left in 0: 2 key/value heads become 5 by'
    """
    now = decisions_of(model, sites)
    then = {name: decide(now[name], heads) for name, heads in remove.items()}
    unequal = [name for name, one in then.items() if len(one.kv) > len(set(one.kv))]
    if not unequal:
        return ""
    before, after = (sum(len(one[name].kv) for name in unequal) for one in (now, then))
    twin = weightless(model)
    cut(twin, remove)
    weights, left = parameters(model), parameters(twin)
    cached = [sum(len(one.kv) for one in found.values()) for found in (now, now | then)] if generates(model) else [0, 0]
    larger = [f"its cache by {cached[1] / cached[0] - 1:.1%}"] if cached[1] > cached[0] else []
    if left > weights:
        larger.insert(0, f"its parameters from {weights:,} to {left:,} (+{left / weights - 1:.1%})")
    if not larger:
        return ""
    return (
        f"groups of unequal size are left in {named(unequal, _NAMED)}: {before} key/value heads become {after} by repeating, and the "
        f"model GROWS: {' and '.join(larger)}. Remove whole groups (unit: group, the default) or as many heads of "
        "every group (unit: even) to make it smaller"
    )


def tell_growth(model: nn.Module, sites: Mapping[str, Site], remove: Mapping[str, Sequence[int]]) -> None:
    """Warn if a removal makes the model larger."""
    found = growth(model, sites, remove)
    if found:
        log.warning("%s", found)
