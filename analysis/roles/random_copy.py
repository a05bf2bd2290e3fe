"""A copy of a model with fresh random weights: what a head does that has learned nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from headwise.analysis.errors import BadInput


def random_copy(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy of the model whose weights are initialised anew, by the rule that its training started from.

    Modules of a `transformers` model are initialised by their own `_init_weights`, others by `reset_parameters`.
    The copy takes as much memory as the model; the model and the random state of the process stay as they are.

    Args:
        model: the model.
        seed: of the weights.

    Raises:
        BadInput: weights are not in memory, are no floating-point numbers, or cannot be initialised.

    >>> model = nn.Linear(2, 2)
    >>> torch.equal(random_copy(model).weight, model.weight)
    False
    >>> torch.equal(random_copy(model, 1).weight, random_copy(model, 1).weight)
    True
    """
    for name, parameter in model.named_parameters():
        if parameter.is_meta or not parameter.is_floating_point():
            kind = (
                "not in memory" if parameter.is_meta else f"quantised ({str(parameter.dtype).removeprefix('torch.')})"
            )
            raise BadInput(f"a random copy needs plain weights, but {name} is {kind}; choose another null")
    fresh = copy.deepcopy(model)
    # transformers marks what came from a file, so that nothing overwrites it.
    for module in fresh.modules():
        for marked in (module, *module.parameters(recurse=False), *module.buffers(recurse=False)):
            vars(marked).pop("_is_hf_initialized", None)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        _initialise(fresh, None)
    old = dict(model.named_parameters())
    for name, parameter in fresh.named_parameters():
        # A matrix of one number (zeros, say) is the same before any training and after.
        if parameter.ndim > 1 and torch.equal(parameter, old[name]) and bool(parameter.min() < parameter.max()):
            raise BadInput(f"a random copy cannot be made: nothing initialises {name}; choose another null")
    return fresh


def _initialise(module: nn.Module, rule: Callable[[nn.Module], None] | None) -> None:
    """Children first, each by the rule of the innermost model it belongs to."""
    rule = getattr(module, "_init_weights", rule)
    for child in module.children():
        _initialise(child, rule)
    if rule is not None:
        rule(module)
    elif callable(reset := getattr(module, "reset_parameters", None)):
        reset()
